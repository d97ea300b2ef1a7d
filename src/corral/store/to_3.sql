-- From the second schema to the third; the files of Store.DATA are part of it.

DROP INDEX task_of_cluster;
DROP INDEX task_started_by;
DROP INDEX task_not_on_ec2;
CREATE INDEX task_of_cluster ON task (region, cluster, desired, family);
CREATE INDEX task_started_by ON task (region, cluster, desired, started_by, family) WHERE started_by IS NOT NULL;
CREATE INDEX task_not_on_ec2 ON task (region, cluster, desired, family) WHERE launch_type != 'EC2';

ALTER TABLE paper RENAME TO stored_resource;
ALTER TABLE stored_resource RENAME COLUMN kind TO type;

-- Containers.
ALTER TABLE host ADD COLUMN docker TEXT NOT NULL DEFAULT '';
ALTER TABLE run ADD COLUMN about TEXT;
