-- Who has which GPUs now: every part of a job that holds a host.
-- grain: one row per job, host and part
-- units: none
-- inputs: jobs
SELECT
    job,
    host,
    part,         -- tells apart the parts that one job has on one host
    state,        -- running, suspended or completing
    role,         -- what its processes do
    first_rank,
    last_rank,
    gpus,
    gpu_indexes,  -- as in 0-3,6
    start_ts,
    limit_ts,     -- when the scheduler will end it
    name,
    "user",
    account,
    "partition",
    restarts,
    ts            -- since when it is so
FROM jobs
QUALIFY row_number() OVER (PARTITION BY job, host, part ORDER BY ts DESC, _received DESC, _offset DESC) = 1
    AND state IN ('running', 'suspended', 'completing')
