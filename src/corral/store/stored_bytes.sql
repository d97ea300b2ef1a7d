-- How many bytes each owner stores: all versions of objects in the owner's buckets, the parts of unfinished uploads to them, and the
-- layers of the owner's repositories. Copies that share their files count in full. Triggers keep the sums, so no change can miss them.
CREATE TABLE stored_bytes (
    owner TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER stored_version AFTER INSERT ON object_version WHEN NEW.size > 0 BEGIN
    INSERT INTO stored_bytes SELECT owner, NEW.size FROM bucket WHERE id = NEW.bucket
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER dropped_version AFTER DELETE ON object_version WHEN OLD.size > 0 BEGIN
    UPDATE stored_bytes SET bytes = bytes - OLD.size WHERE owner = (SELECT owner FROM bucket WHERE id = OLD.bucket);
END;
CREATE TRIGGER stored_part AFTER INSERT ON content_part WHEN EXISTS (SELECT 1 FROM upload WHERE content = NEW.content) BEGIN
    INSERT INTO stored_bytes
    SELECT owner, NEW.size FROM bucket WHERE id = (SELECT bucket FROM upload WHERE content = NEW.content)
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER replaced_part AFTER UPDATE OF content ON content_part
WHEN EXISTS (SELECT 1 FROM upload WHERE content = OLD.content) BEGIN
    UPDATE stored_bytes SET bytes = bytes - OLD.size
    WHERE owner = (SELECT owner FROM bucket WHERE id = (SELECT bucket FROM upload WHERE content = OLD.content));
END;
CREATE TRIGGER ended_upload AFTER DELETE ON upload BEGIN
    UPDATE stored_bytes
    SET bytes = bytes - (SELECT coalesce(sum(size), 0) FROM content_part WHERE content = OLD.content)
    WHERE owner = (SELECT owner FROM bucket WHERE id = OLD.bucket);
END;
CREATE TRIGGER stored_layer AFTER INSERT ON repository_layer BEGIN
    INSERT INTO stored_bytes
    SELECT owner, (SELECT size FROM layer WHERE digest = NEW.digest) FROM repository WHERE id = NEW.repository
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER dropped_layer AFTER DELETE ON repository_layer BEGIN
    UPDATE stored_bytes SET bytes = bytes - (SELECT size FROM layer WHERE digest = OLD.digest)
    WHERE owner = (SELECT owner FROM repository WHERE id = OLD.repository);
END;
