package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// dataKeysKey is the key of the store at which the state of the data keys is.
const dataKeysKey = "/barque/data-keys"

// dataKeysFile is a server's file of the data keys, beside its other keys.
const dataKeysFile = "data-keys.json"

// loadDataKeys reads this server's data keys, before the store is open.
func (s *server) loadDataKeys(context.Context) (err error) {
	s.dataKeys, err = datakeys.Load(datakeys.KeysConfig{
		Cluster: s.record.Cluster.ID,
		Path:    filepath.Join(credentials.Dir(s.options.DataDir), dataKeysFile),
		Sealer:  s.ids.Trust,
		Look: func(ctx context.Context, newest bool) ([]byte, uint64, uint64, error) {
			return register.New(s.store, dataKeysKey).Look(ctx, newest)
		},
		Note: s.record.NoteEncryption,
		Took: func(generation uint64) { s.pool.SetDataKeys(generation) },
	})
	s.transformers = encryption.New(keySource{s.dataKeys}, dataKeysKey)
	return err
}

// keySource are data keys for the API server.
type keySource struct{ *datakeys.Keys }

// Epoch implements encryption.Keys.
func (k keySource) Epoch(ctx context.Context) (*encryption.Epoch, error) {
	e, err := k.Keys.Epoch(ctx)
	return (*encryption.Epoch)(e), err
}

// storedObjects are the objects in the store, for changes of the data keys.
type storedObjects struct{ *encryption.Objects }

// Rewrite implements datakeys.Objects.
func (o storedObjects) Rewrite(ctx context.Context, term uint64, e *datakeys.Epoch, report func(left int)) error {
	return o.Objects.Rewrite(ctx, term, (*encryption.Epoch)(e), report)
}

// newEncryption returns this server's part in changes of the data keys.
func (s *server) newEncryption() *datakeys.Manager {
	return datakeys.New(datakeys.Config{
		Server: s.rollover(dataKeysKey, "encryption"), Keys: s.dataKeys, Sealer: s.ids.Trust,
		Members: func() []rollover.Member { return s.members.DataKeys() },
		Objects: storedObjects{&encryption.Objects{Store: s.store, Transformers: s.transformers, Builtin: builtin, Now: time.Now}},
		Purge:   s.store.Purge, Now: time.Now,
	})
}

// builtin tells whether a resource is one of the API server's own.
func builtin(of schema.GroupResource) bool {
	for _, r := range apiserver.DefaultResources() {
		if r.GroupVersionResource().GroupResource() == of {
			return true
		}
	}
	return false
}

// beginEncryption encrypts a new cluster from its first object on. It is not for one that begins
// with a backup, which goes on as that was.
func (s *server) beginEncryption(ctx context.Context) error {
	if err := datakeys.Begin(ctx, register.New(s.store, dataKeysKey), s.ids.Trust, time.Now()); err != nil {
		return fmt.Errorf("make the first data key: %w", err)
	}
	return nil
}

// restoreStore loads the backup that a new cluster begins with.
func (s *server) restoreStore(ctx context.Context) error {
	return s.record.RestoreStore(func(o *enroll.Restore) error {
		return backups.Restore(ctx, (*backups.RestoreOptions)(o), s.store, s.checkRestored, s.logger.With("part", "store"))
	})
}

// checkRestored refuses a backup with encrypted objects that nobody could read.
func (s *server) checkRestored(item *raftstore.Item) error {
	if item.Key != dataKeysKey {
		return nil
	}
	return s.dataKeys.CheckRestored(item.Value)
}

// encryptionReady is the check of /readyz that fails while this server cannot read all objects.
func (s *server) encryptionReady() healthz.HealthChecker {
	return healthz.NamedCheck("encryption", func(r *http.Request) error { return s.dataKeys.Ready(r.Context()) })
}

// leadWithKeys fails if this server cannot read all objects: its controllers would take them for
// broken. Another server that can leads then.
func (s *server) leadWithKeys(ctx context.Context) error {
	err := s.dataKeys.Ready(ctx)
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("this server must not lead: %w", err), s.store.HandOver())
}
