-- A whole session, as a user sees it.
select segment, shard, address, relations from cerebro.segments('points');
select cerebro.create_model('logit', '{"layers": [{"Dense": {"units": "$classes", "activation": "softmax"}}]}');
select model, owner, definition from cerebro.model;
select trial, metric is not null as metric, best_epoch, params, state, error
from cerebro.fit('first', 'points', 'logit', 'label', '{a,b}', '{"epochs": 2, "seed": 7, "order": "fixed"}');
select run, source, model, state, owner, label, features, rank_metric, finished_at > started_at as took_time, error, pid
from cerebro.run;
select run, trial, params, state, error from cerebro.trial;
select trial, epoch, array(select jsonb_object_keys(metrics)) as metrics, learning_rate::real from cerebro.epoch order by epoch;
select trial, epoch, phase, segment, shard, "position", attempt, state, rows, batches
from cerebro.visit
order by epoch, phase, "position", shard;
select * from cerebro.progress;
select metric from cerebro.evaluate('first', 'points');
select count(cerebro.predict_class('first', p)) from points p;
select jsonb_typeof(cerebro.predict('first', '{1,2}') -> 'class') as class;
select trial, params, state from cerebro.resume('first');
select cerebro.drop_run('first');
select cerebro.drop_model('logit');
select run from cerebro.run;
-- One configuration that fails, and one that doesn't.
select cerebro.create_model('odd', '{"layers": [{"Reshape": {"target_shape": ["$width"]}}, {"Dense": {"units": 2}}]}');
select trial, params, best_epoch, state, error
from cerebro.fit('second', 'points', 'odd', 'label', '{a,b}', '{"epochs": 1, "seed": 7, "search": {"space": {"width": [3, 2]}}}');
