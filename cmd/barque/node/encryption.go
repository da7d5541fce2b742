package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/cmd/barque/node/adapters"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/members"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// dataKeysKey is the key of the store at which the state of the data keys is.
const dataKeysKey = "/barque/data-keys"

// encryptionParts are those of a server that encrypt objects.
type encryptionParts struct {
	keys *datakeys.Keys
	// transformers encrypt objects with keys, and manager changes these.
	transformers *encryption.Transformers
	manager      *datakeys.Manager
	providers    *provider.Providers // encrypt in place of keys what a file names
	sight        *encryption.Sight   // whether this server reads what they have encrypted
	apiMade      chan struct{}       // closed once the API is there
}

// loadDataKeys reads this server's data keys, before the store is open.
func (s *server) loadDataKeys(context.Context) (err error) {
	s.encryption.keys, err = datakeys.Load(datakeys.KeysConfig{
		Cluster: s.record.Cluster.ID,
		Path:    credentials.DataKeysFile(s.options.DataDir),
		Sealer:  s.ids.Trust,
		Look: func(ctx context.Context, newest bool) ([]byte, uint64, uint64, error) {
			return register.New(s.store, dataKeysKey).Look(ctx, newest)
		},
		Note:  s.record.NoteEncryption,
		InUse: func(ctx context.Context, id string) (bool, error) { return s.storedObjects().InUse(ctx, id) },
		Took: func(generation uint64) {
			s.pool.SetDataKeys(generation)
			s.encryption.sight.Again() // the file in use may be another one
		},
	})
	s.encryption.transformers = encryption.New(adapters.KeySource{Keys: s.encryption.keys}, dataKeysKey)
	s.encryption.transformers.Use(s.encryption.providers)
	if err == nil {
		s.encryption.providers.Probe(s.encryption.keys.Probes)
	}
	return err
}

// startProviders reads the file of providers, and goes on looking at it.
func (s *server) startProviders(ctx context.Context) (err error) {
	o := s.options.Providers
	if o == nil {
		o = new(provider.Options)
	}
	s.encryption.apiMade = make(chan struct{})
	s.encryption.sight = encryption.NewSight(func() *encryption.Objects { return s.storedObjects().Objects },
		s.encryption.apiMade, s.showEncryption)
	s.encryption.providers, err = provider.New(
		provider.Config{Options: o, Server: s.options.Name, Others: s.otherProviders,
			Logger: s.logger.With("part", "encryption"),
			Took: func() {
				s.showEncryption()
				s.encryption.sight.Again()
			}})
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "encryption providers", Run: s.encryption.providers.Run})
}

// showEncryption shows the others how this server encrypts by a file.
func (s *server) showEncryption() {
	if pool := s.late.pool.Load(); pool != nil {
		pool.SetEncryption(s.encryption.providers.Digest(), s.encryption.providers.Keys(),
			s.encryption.sight.Err() != nil)
	}
}

// otherProviders are the other servers by their files of providers. They are not known before this
// server's API starts.
func (s *server) otherProviders() (others []provider.Other, known bool) {
	m := s.late.members.Load()
	if m == nil {
		return nil, false
	}
	for _, is := range m.EncryptionFiles() {
		if is.Role == pki.RoleServer && is.Barred == "" && is.Name != s.options.Name {
			others = append(others,
				provider.Other{Name: is.Name, File: uint32(is.Generation), Keys: uint16(is.Generation >> 32),
					Blind: is.Generation>>48 != 0, Alive: is.Alive})
		}
	}
	return others, true
}

// pluginChecks are the checks of the plugins, and of this server's reading what a file encrypts.
func (s *server) pluginChecks() []healthz.HealthChecker {
	all := []healthz.HealthChecker{
		healthz.NamedCheck("encryption-file", func(*http.Request) error { return s.encryption.sight.Err() })}
	if plugins := s.encryption.providers.Health(); plugins != nil {
		all = append(all, plugins)
	}
	return all
}

func (s *server) storedObjects() adapters.StoredObjects {
	return adapters.StoredObjects{
		Objects: &encryption.Objects{Store: s.store, Transformers: s.encryption.transformers, Now: time.Now}}
}

// newEncryption returns this server's part in changes of the data keys.
func (s *server) newEncryption() *datakeys.Manager {
	return datakeys.New(datakeys.Config{
		Server: s.rollover(dataKeysKey, "encryption", acts.Data), Keys: s.encryption.keys, Sealer: s.ids.Trust,
		Members: s.dataKeyMembers, File: adapters.FileOfProviders{Providers: s.encryption.providers},
		Objects: s.storedObjects(),
		Purge:   s.store.Purge, Now: time.Now, Self: s.options.Name, Leader: s.leader,
	})
}

// dataKeyMembers are the members by their data keys. There are none before this server's API
// starts: it leads nothing yet, and serves nobody, so that it cleans its disk without a turn.
func (s *server) dataKeyMembers() []rollover.Member {
	if m := s.late.members.Load(); m != nil {
		return m.DataKeys()
	}
	return nil
}

const secrets = "secrets"

// secretsCipher is the cipher of Secrets in the store; empty: some are in clear, or problem is the
// reason why it is not known.
func (s *server) secretsCipher(ctx context.Context) (cipher, problem string) {
	is, err := s.encryption.manager.Status(ctx)
	covered := false
	if err == nil {
		covered, err = is.Covers(secrets)
	}
	switch {
	case err != nil:
		return "", err.Error()
	case !covered:
		return "", ""
	}
	if by := is.File.Writer(secrets); by != "" && is.File.Writes {
		return by + " of --encryption-provider-config", ""
	}
	return encryption.Cipher, ""
}

// leader returns the name of the leader in this server's view.
func (s *server) leader() (name string, known bool) {
	m, known := s.store.Leader()
	return m.Name, known
}

// encryptable returns the full name of a resource that can be encrypted.
func (s *server) encryptable(ctx context.Context, name string) (string, error) {
	client, err := apiextensions.NewForConfig(s.api.LoopbackConfig())
	if err != nil {
		return "", err
	}
	resource, err := s.encryption.transformers.Resolve(ctx, name, client.ApiextensionsV1().CustomResourceDefinitions())
	if unknown, is := errors.AsType[*encryption.ResourceError](err); is {
		err = &datakeys.RefusedError{Reason: unknown.Reason}
	}
	return resource, err
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
		return backups.Restore(ctx, (*backups.RestoreOptions)(o), s.store, s.checkRestored,
			s.logger.With("part", "store"))
	})
}

// checkRestored refuses a backup with encrypted objects that somebody could not read.
func (s *server) checkRestored(item *raftstore.Item) (err error) {
	if item.Key == dataKeysKey {
		item.Value, err = s.encryption.keys.FitRestored(item.Value)
	}
	return err
}

// checkSaved refuses to save a sealed backup with encrypted objects that its own keys do not open.
func checkSaved(view raftstore.View, secrets map[string][]byte) error {
	item, _ := view.Get(dataKeysKey)
	return CheckBackup(secrets, &item)
}

// CheckBackup is called with the items of a backup. It returns why the keys of the cluster in the
// backup do not open the keys of its objects.
func CheckBackup(secrets map[string][]byte, item *raftstore.Item) error {
	if item.Key != dataKeysKey || len(secrets) == 0 {
		return nil
	}
	return enroll.OpensDataKeys(secrets, item.Value)
}

// encryptionReady is the check of /readyz that fails while this server cannot read all objects.
func (s *server) encryptionReady() healthz.HealthChecker {
	return healthz.NamedCheck("encryption", func(r *http.Request) error { return s.encryption.keys.Ready(r.Context()) })
}

// startHandingOver begins before the API: a server without the keys is never ready, so that a
// leader among them would not begin its work.
func (s *server) startHandingOver(ctx context.Context) error {
	handover := &datakeys.Handover{Keys: adapters.Readability{Keys: s.encryption.keys, Sight: s.encryption.sight},
		Logger: s.logger.With("part", "encryption"),
		To: func(ctx context.Context, generation uint64) error {
			return s.store.HandOverTo(ctx, "it cannot read all objects", members.Readers(s.pool.Members(), generation))
		}}
	runner, err := runtime.New(runtime.Config{
		Leadership: s.store,
		// of the API: none is needed
		ClientsFor: func(context.Context) (kubernetes.Interface, error) { return nil, nil },
		Routines: []runtime.Routine{
			{Name: "leadership with keys", Run: func(ctx context.Context, _ kubernetes.Interface) error {
				return handover.Lead(ctx)
			}}},
		Logger: s.logger.With("part", "encryption"),
	})
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "leadership with keys", Run: func(ctx context.Context) error {
		return lifecycle.All(ctx, s.encryption.sight.Run, runner.Run)
	}})
}
