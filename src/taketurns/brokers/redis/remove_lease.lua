#!lua flags=allow-oom
-- Give a lease up.

redis.call('DEL', key('lease', ARGV[1]))
