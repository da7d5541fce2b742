package backups

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// RestoreOptions begin a new cluster with the state of a backup. A node that is stopped in between
// has them on disk: see enroll.Restore.
type RestoreOptions struct {
	File    string
	KeyFile string
	// Gap is the distance of the new cluster's revision to the backup's. The new revision must be
	// above all that the old cluster handed out after the backup.
	Gap uint64
}

// DefaultRevisionGap is the number of revisions of a day with 10,000 writes a second, or of four
// months with a hundred. A revision has room for nine thousand million such gaps.
const DefaultRevisionGap = 1_000_000_000

// Read verifies a whole backup and returns its contents without the items.
func Read(o *RestoreOptions) (about backup.About, secrets map[string][]byte, err error) {
	err = eachItem(o, func(r *backup.Reader) error {
		about, secrets = r.About(), r.Secrets()
		return r.Items(func(*raftstore.Item) error { return nil })
	})
	return about, secrets, err
}

func eachItem(o *RestoreOptions, read func(*backup.Reader) error) error {
	key, err := ReadKey(o.KeyFile)
	if err != nil {
		return err
	}
	f, err := os.Open(o.File)
	if err != nil {
		return fmt.Errorf("the backup to begin with: %w", err)
	}
	defer f.Close()
	r, err := backup.NewReader(bufio.NewReaderSize(f, 256<<10), key)
	if err == nil {
		err = read(r)
	}
	if err != nil {
		return fmt.Errorf("the backup %s: %w", o.File, err)
	}
	return nil
}

// Restorer is the store's interface for a new cluster that begins with a backup.
type Restorer interface {
	Succeed(ctx context.Context, cluster string) error
	Restore(
		ctx context.Context, items func(yield func(*raftstore.Item) error) error, opts raftstore.RestoreOptions,
	) (raftstore.Result, error)
}

// Restore loads the items of the backup into the new cluster's store before it serves. It makes the
// cluster the successor of the backup's. It may be repeated. check is Config.CheckRestored.
func Restore(
	ctx context.Context, o *RestoreOptions, store Restorer, check func(*raftstore.Item) error, logger *slog.Logger,
) error {
	return eachItem(o, func(source *backup.Reader) error {
		if err := store.Succeed(ctx, source.About().ClusterID); err != nil {
			return err
		}
		result, err := store.Restore(ctx, checked(source.Items, check),
			raftstore.RestoreOptions{AtLeast: source.About().Revision + o.Gap, Supersede: true})
		if err == nil {
			logger.Info("the new cluster has the state of the backup", "backup", o.File, "backupRevision",
				source.About().Revision, "revision", result.Revision)
		}
		return err
	})
}

// checked calls check with each item before it is used.
func checked(
	items func(yield func(*raftstore.Item) error) error, check func(*raftstore.Item) error,
) func(yield func(*raftstore.Item) error) error {
	if check == nil {
		return items
	}
	return func(yield func(*raftstore.Item) error) error {
		return items(func(item *raftstore.Item) error {
			if err := check(item); err != nil {
				return err
			}
			return yield(item)
		})
	}
}
