package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/membership/enroll"
)

// restoreStore brings the state of the backup into the new cluster's store. A crash in the middle,
// or just after, is made good by doing it again at the next start.
func restoreStore(ctx context.Context, r *enroll.Record, store backups.Restorer, logger *slog.Logger) error {
	o := r.Restore
	if err := backups.Restore(ctx, (*backups.RestoreOptions)(o), store, logger); err != nil {
		return fmt.Errorf("%w; start again to go on with it, or remove %s to begin anew", err, r.Dir)
	}
	r.Restored, r.Restore = o.File, nil
	return nil
}

// backedUp is what the backups of this server tell of its cluster.
type backedUp struct {
	record  *enroll.Record
	dataDir string
}

func (c backedUp) ID() string                { return c.record.Cluster.ID }
func (c backedUp) Settings() json.RawMessage { return c.record.Cluster.Settings }

func (c backedUp) Secrets() (map[string][]byte, error) {
	return enroll.ClusterSecrets(c.dataDir, c.record)
}
