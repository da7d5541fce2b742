package provider

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes/scheme"
	kmsservice "k8s.io/kms/pkg/service"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
)

const (
	guard = "/barque/data-keys"
	head  = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"
)

// key is a secret of a file.
func key(b byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) }

// keyed is a provider with one key, as a file has it.
func keyed(provider, name string, b byte) string {
	return fmt.Sprintf("{%s: {keys: [{name: %s, secret: %s}]}}", provider, name, key(b))
}

// entry is one of a file's resources.
func entry(resources string, providers ...string) string {
	text := "- resources: [" + resources + "]\n  providers:\n"
	for _, p := range providers {
		text += "  - " + p + "\n"
	}
	return text
}

// cluster is the store of some servers, and the state of their data keys.
type cluster struct {
	backend *raftstore.Store
	epoch   *encryption.Epoch
	probes  map[string][]byte
	servers []*server
}

func newCluster(t *testing.T, writes string) *cluster {
	c := &cluster{backend: raftstore.NewInMemory(raftstore.Options{}),
		epoch: &encryption.Epoch{Resources: []string{"secrets"}, Writes: writes}}
	t.Cleanup(func() { c.backend.Close() })
	return c
}

// Epoch, Renew and Key implement encryption.Keys.
func (c *cluster) Epoch(context.Context) (*encryption.Epoch, error) { return c.epoch, nil }
func (c *cluster) Renew(context.Context) error                      { return nil }
func (c *cluster) Key(_ context.Context, id string) ([]byte, error) {
	return bytes.Repeat([]byte(id[:1]), 32), nil
}

// server is the API of one server.
type server struct {
	name         string
	path         string
	cluster      *cluster
	providers    *Providers
	transformers *encryption.Transformers
	secrets      kstorage.Interface
	alive, blind bool
}

// start starts a server with a file, or without one for "".
func (c *cluster) start(t *testing.T, name, content string) *server {
	t.Helper()
	s := &server{name: name, cluster: c, alive: true}
	o := &Options{Reload: true}
	if content == "" {
		o.Reload = false
	} else {
		s.path = filepath.Join(t.TempDir(), name+".yaml")
		s.write(t, content)
		o.File = s.path
	}
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	var err error
	s.providers, err = New(
		Config{Options: o, Server: name, Others: func() ([]Other, bool) { return c.others(s), true }, Took: func() {},
			Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.providers.end)
	s.providers.Probe(func() map[string][]byte { return c.probes })
	s.transformers = encryption.New(c, guard)
	s.transformers.Use(s.providers)
	for _, resource := range []schema.GroupResource{secrets, {Resource: "configmaps"}, {Resource: "events"},
		{Resource: "zebras"}} {
		s.transformers.Place(resource, "/registry/"+resource.Resource+"/")
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	codec := scheme.Codecs.CodecForVersions(info.Serializer, scheme.Codecs.UniversalDeserializer(),
		corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	store, err := storage.New(
		storage.Config{Backend: c.backend, Codec: codec, New: func() runtime.Object { return new(corev1.Secret) },
			NewList:  func() runtime.Object { return new(corev1.SecretList) },
			RawLists: rawlist.NewCache(1 << 20), Objects: objectcache.New(1 << 20), Prefix: "/registry",
			ResourcePrefix: "/secrets", GroupResource: secrets,
			Transformer: s.transformers.TransformerForResource(secrets)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	s.secrets = store
	c.servers = append(c.servers, s)
	return s
}

// use takes the file of a server into use, as the leader does, once the plugins of all have
// answered.
func (c *cluster) use(t *testing.T, s *server) {
	t.Helper()
	await.NoError(t, "the file is taken into use", func(ctx context.Context) error {
		for _, other := range c.servers {
			if other.path != "" {
				other.providers.lookAtPlugins(ctx)
			}
		}
		return c.tryUse(t, s)
	})
}

func (c *cluster) tryUse(t *testing.T, s *server) error {
	t.Helper()
	is, err := s.providers.Agreed(t.Context(), c.epoch.File, true)
	if err == nil && len(is.Probes) > 0 {
		probes := maps.Clone(c.probes)
		if probes == nil {
			probes = map[string][]byte{}
		}
		maps.Copy(probes, is.Probes)
		c.probes = probes
		for _, other := range c.servers {
			if other.path != "" {
				other.providers.lookAtPlugins(t.Context())
			}
		}
		is, err = s.providers.Agreed(t.Context(), c.epoch.File, true)
	}
	if err != nil {
		return err
	}
	next := *c.epoch
	next.File, next.Labels, next.Resources = is.File, is.Labels, slices.Concat(next.Resources, is.Encrypts)
	c.epoch = &next
	c.step(t)
	return nil
}

func (c *cluster) others(of *server) (all []Other) {
	for _, s := range c.servers {
		if s != of {
			all = append(all,
				Other{Name: s.name, File: s.providers.Digest(), Keys: s.providers.Keys(), Blind: s.blind,
					Alive: s.alive})
		}
	}
	return all
}

var secrets = schema.GroupResource{Resource: "secrets"}

func (s *server) write(t *testing.T, content string) {
	t.Helper()
	if err := os.WriteFile(s.path, []byte(head+content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload replaces the file, and checks it until it counts or is refused.
func (s *server) reload(t *testing.T, content string) string {
	t.Helper()
	s.write(t, content)
	for range 2 {
		s.providers.file.Check(t.Context())
	}
	return s.providers.file.State().Problem
}

func (s *server) tryCreate(t *testing.T, name string) error {
	of := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Data: map[string][]byte{"k": []byte("hidden-" + name)}}
	return s.secrets.Create(t.Context(), "/secrets/ns/"+name, of, new(corev1.Secret), 0)
}

func (s *server) create(t *testing.T, name string) {
	t.Helper()
	if err := s.tryCreate(t, name); err != nil {
		t.Fatalf("%s on %s: %v", name, s.name, err)
	}
}

// read returns the error of reading a Secret alone. Its content must be correct.
func (s *server) read(t *testing.T, name string) error {
	t.Helper()
	var got corev1.Secret
	err := s.secrets.Get(t.Context(), "/secrets/ns/"+name, kstorage.GetOptions{}, &got)
	if err == nil && string(got.Data["k"]) != "hidden-"+name {
		t.Errorf("%s on %s has %q", name, s.name, got.Data)
	}
	return err
}

func (s *server) list(t *testing.T) (int, error) {
	var got corev1.SecretList
	err := s.secrets.GetList(t.Context(), "/secrets/",
		kstorage.ListOptions{Recursive: true, Predicate: kstorage.Everything}, &got)
	return len(got.Items), err
}

func (s *server) update(t *testing.T, name string) error {
	return s.secrets.GuaranteedUpdate(t.Context(), "/secrets/ns/"+name, new(corev1.Secret), false, nil,
		func(now runtime.Object, _ kstorage.ResponseMeta) (runtime.Object, *uint64, error) {
			out := now.(*corev1.Secret).DeepCopy()
			out.Labels = map[string]string{"updated": s.name}
			return out, nil, nil
		}, nil)
}

// stored is the value of a Secret in the store.
func (c *cluster) stored(t *testing.T, name string) string {
	t.Helper()
	return c.at(t, "/registry/secrets/ns/"+name)
}

// at is the value at a key of the store.
func (c *cluster) at(t *testing.T, key string) string {
	t.Helper()
	view, err := c.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	item, _ := view.Get(key)
	return string(item.Value)
}

// rewrite does the leader's part of `secrets-encrypt rewrite` on a server.
func (s *server) rewrite(t *testing.T) error {
	t.Helper()
	s.cluster.step(t)
	o := &encryption.Objects{Store: s.cluster.backend, Transformers: s.transformers, Now: time.Now}
	if err := o.Rewrite(t.Context(), 0, s.cluster.epoch, func(int) {}); err != nil {
		return err
	}
	left, err := o.Left(t.Context(), s.cluster.epoch)
	if err == nil && left > 0 {
		err = fmt.Errorf("%d objects are left", left)
	}
	return err
}

// step changes the state of the data keys.
func (c *cluster) step(t *testing.T) {
	t.Helper()
	result, err := c.backend.Put(t.Context(), guard, []byte(time.Now().String()))
	if err != nil {
		t.Fatal(err)
	}
	next := *c.epoch
	next.Revision = result.Revision
	c.epoch = &next
}

// TestProviders: each provider writes its own form, reads it again, and leaves nothing in clear.
// Values under data keys and in clear stay readable beside it, and a rewrite brings all into the
// file's form, and back again.
func TestProviders(t *testing.T) {
	for _, provider := range []string{"aescbc", "aesgcm", "secretbox"} {
		t.Run(provider, func(t *testing.T) {
			c := newCluster(t, "")
			s := c.start(t, "s1", "")
			s.create(t, "clear")
			c.epoch.Writes = "one"
			s.create(t, "own")
			s = c.start(t, "s2", entry("secrets", keyed(provider, "k1", 1)))
			c.servers = c.servers[1:] // the server without a file is removed
			c.use(t, s)
			s.create(t, "file")
			prefix := "k8s:enc:" + provider + ":v1:k1:"
			for name, want := range map[string]string{"clear": "k8s\x00", "own": encryption.Prefix + "one:",
				"file": prefix} {
				if got := c.stored(t, name); !strings.HasPrefix(got, want) ||
					strings.Contains(got, "hidden") != (name == "clear") {
					t.Errorf("%s is stored as %q", name, got)
				}
				if err := s.read(t, name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if n, err := s.list(t); n != 3 || err != nil {
				t.Errorf("a list has %d, %v", n, err)
			}
			if err := s.rewrite(t); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"clear", "own", "file"} {
				if got := c.stored(t, name); !strings.HasPrefix(got, prefix) || s.read(t, name) != nil {
					t.Errorf("%s is stored as %q, %v", name, got, s.read(t, name))
				}
			}
			before := c.stored(t, "file")
			if err := s.rewrite(t); err != nil || c.stored(t, "file") != before {
				t.Errorf("a second rewrite writes again: %v", err)
			}
			// A new key first, then the earlier one goes.
			if problem := s.reload(t,
				entry("secrets", keyed(provider, "k2", 2), keyed(provider, "k1", 1))); problem != "" {
				t.Fatal(problem)
			}
			c.use(t, s)
			if err := s.rewrite(t); err != nil ||
				!strings.HasPrefix(c.stored(t, "own"), "k8s:enc:"+provider+":v1:k2:") {
				t.Errorf("%q, %v", c.stored(t, "own"), err)
			}
			// Identity first leaves all to the data key, and so it is without the file.
			if problem := s.reload(t, entry("secrets", "{identity: {}}", keyed(provider, "k2", 2))); problem != "" {
				t.Fatal(problem)
			}
			c.use(t, s)
			if err := s.rewrite(t); err != nil || !strings.HasPrefix(c.stored(t, "own"), encryption.Prefix) {
				t.Errorf("%q, %v", c.stored(t, "own"), err)
			}
			c.servers = nil
			s = c.start(t, "s3", "")
			c.use(t, s)
			if err := s.rewrite(t); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"clear", "own", "file"} {
				if got := c.stored(t, name); !strings.HasPrefix(got, encryption.Prefix) || s.read(t, name) != nil {
					t.Errorf("%s is stored as %q, %v", name, got, s.read(t, name))
				}
			}
		})
	}
}

// TestFilesThatDiffer: while the files of living servers differ, the data key writes, which all
// read. A value that one server cannot read is no absent object to it, and stays as it is.
func TestFilesThatDiffer(t *testing.T) {
	c := newCluster(t, "one")
	file := entry("secrets, configmaps", keyed("secretbox", "k1", 1))
	a := c.start(t, "a", file)
	b := c.start(t, "b", "")
	a.create(t, "early")
	if got := c.stored(t, "early"); !strings.HasPrefix(got, encryption.Prefix) || b.read(t, "early") != nil {
		t.Errorf("b cannot read %q: %v", got, b.read(t, "early"))
	}
	if sealed, _, err := a.transformers.TransformerForResource(
		schema.GroupResource{Resource: "configmaps"}).(storage.Sealer).Seal(t.Context(), []byte("x"),
		at("/registry/configmaps/ns/c")); err != nil || string(sealed) != "x" {
		t.Errorf("a ConfigMap, which the file alone names: %q, %v", sealed, err)
	}
	if err := c.tryUse(t, a); err == nil || !strings.Contains(err.Error(), "b (without a file)") {
		t.Errorf("the file is taken into use: %v", err)
	}
	if is := a.providers.Status(); !slices.Equal(is.Differ, []string{"b (without a file)"}) ||
		b.providers.Status() == nil {
		t.Errorf("%+v", is)
	}

	// b is off, and comes back with another file.
	c.servers = []*server{a}
	c.use(t, a)
	a.create(t, "late")
	if got := c.stored(t, "late"); !strings.HasPrefix(got, "k8s:enc:secretbox:v1:k1:") {
		t.Fatalf("%q", got)
	}
	for what, other := range map[string]string{"another secret": entry("secrets", keyed("secretbox", "k1", 2)),
		"another name":     entry("secrets", keyed("secretbox", "k2", 1)),
		"another provider": entry("secrets", keyed("aesgcm", "k1", 1)),
		"another resource": entry("configmaps", keyed("secretbox", "k1", 1)), "no file": ""} {
		t.Run(what, func(t *testing.T) {
			c.servers = []*server{a}
			b := c.start(t, "b", other)
			before := c.stored(t, "late")
			check := func(what string, err error) {
				t.Helper()
				if err == nil || kstorage.IsNotFound(err) || kstorage.IsCorruptObject(err) {
					t.Errorf("%s: %v", what, err)
					return
				}
				for _, want := range []string{"/registry/secrets/ns/late", "k8s:enc:secretbox:v1:k1", b.path, fileFlag,
					"differs between servers: a"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: the error lacks %q: %v", what, want, err)
					}
				}
			}
			check("get", b.read(t, "late"))
			_, err := b.list(t)
			check("list", err)
			check("update", b.update(t, "late"))
			check("delete",
				b.secrets.Delete(t.Context(), "/secrets/ns/late", new(corev1.Secret), nil,
					kstorage.ValidateAllObjectFunc, nil, kstorage.DeleteOptions{}))
			check("delete unread",
				b.secrets.Delete(t.Context(), "/secrets/ns/late", new(corev1.Secret), nil,
					kstorage.ValidateAllObjectFunc, nil, kstorage.DeleteOptions{ExpectTransformOrDecodeError: true}))
			if err := b.rewrite(t); err == nil ||
				!strings.Contains(err.Error(), "is not, or not any more, the one that is in use") {
				t.Errorf("rewrite: %v", err)
			}
			b.create(t, "by b of "+what)
			if got := c.stored(t, "by b of "+what); !strings.HasPrefix(got, encryption.Prefix) {
				t.Errorf("it writes %q", got)
			}
			if err := b.secrets.Create(t.Context(), "/secrets/ns/late", &corev1.Secret{}, new(corev1.Secret),
				0); !kstorage.IsExist(err) {
				t.Errorf("create: %v", err)
			}
			if c.stored(t, "late") != before {
				t.Errorf("it was overwritten: %q", c.stored(t, "late"))
			}
			if err := a.read(t, "late"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLostProvider: a value whose provider no file of any server has is lost. Only the option for
// corrupt objects deletes it.
func TestLostProvider(t *testing.T) {
	c := newCluster(t, "one")
	a := c.start(t, "a", entry("secrets", keyed("secretbox", "k1", 1)))
	c.use(t, a)
	a.create(t, "s")
	lost := func(stored string) bool {
		err := a.providers.Unreadable([]byte(stored), at("/registry/secrets/ns/s"), errors.New("no"))
		_, unavailable := errors.AsType[*storage.UnavailableError](err)
		return !unavailable
	}
	c.start(t, "b", entry("secrets", keyed("secretbox", "k2", 2))).alive = false
	if lost(c.stored(t, "s")) {
		t.Error("the server with its provider may be off")
	}
	c.servers = []*server{a}
	if !lost("k8s:enc:kms:v2:p:x") {
		t.Error("an object of a plugin that no file has can never be deleted")
	}
	a.providers.current.Load().plugins = map[string]kmsservice.Service{"p": nil}
	if lost("k8s:enc:kms:v2:p:x") {
		t.Error("an object of a plugin of the file is lost, which may be away")
	}
	a.providers.current.Load().plugins = nil
	c.servers = []*server{a}
	if problem := a.reload(t, entry("secrets", keyed("secretbox", "k2", 2))); problem != "" {
		t.Fatal(problem)
	}
	err := a.providers.Unreadable([]byte(c.stored(t, "s")), at("/registry/secrets/ns/s"), errors.New("no"))
	if _, unavailable := errors.AsType[*storage.UnavailableError](err); unavailable {
		t.Errorf("it can never be deleted: %v", err)
	}
}

// at is the place of a value.
type at string

// AuthenticatedData implements value.Context.
func (a at) AuthenticatedData() []byte { return []byte(a) }

// TestWildcards: the nearest name of a resource counts. A resource that cannot be encrypted stays
// in clear.
func TestWildcards(t *testing.T) {
	c := newCluster(t, "one")
	s := c.start(t, "s1",
		entry("secrets", keyed("secretbox", "exact", 1))+entry("'*.apps'", keyed("aesgcm", "group", 2))+
			entry("events", "{identity: {}}")+entry("'*.*'", keyed("aescbc", "all", 3)))
	c.use(t, s)
	for resource, want := range map[schema.GroupResource]string{
		secrets:                                            "k8s:enc:secretbox:v1:exact:",
		{Group: "apps", Resource: "deployments"}:           "k8s:enc:aesgcm:v1:group:",
		{Resource: "configmaps"}:                           "k8s:enc:aescbc:v1:all:",
		{Group: "example.com", Resource: "widgets"}:        "k8s:enc:aescbc:v1:all:",
		{Resource: "events"}:                               "{}",
		{Resource: "services"}:                             "{}",
		{Group: "coordination.k8s.io", Resource: "leases"}: "{}",
	} {
		sealer := s.transformers.TransformerForResource(resource).(storage.Sealer)
		sealed, guarded, err := sealer.Seal(t.Context(), []byte("{}"), at("/registry/x"))
		if err != nil || !strings.HasPrefix(string(sealed), want) || (guarded.Key == guard) == (want == "{}") {
			t.Errorf("%s: %q, %+v, %v", resource, sealed, guarded, err)
		}
		if data, stale, err := sealer.TransformFromStorage(t.Context(), sealed, at("/registry/x")); err != nil ||
			stale || string(data) != "{}" {
			t.Errorf("%s: %q, %t, %v", resource, data, stale, err)
		}
	}
	if got := s.providers.Resources(); !maps.Equal(got,
		map[string]string{"secrets": "secretbox", "*.apps": "aesgcm", "events": "identity", "*.*": "aescbc"}) {
		t.Errorf("%v", got)
	}
	// A custom resource is found by its key, and an event is left alone.
	for key, want := range map[string]string{"/registry/example.com/widgets/ns/w": "k8s:enc:aescbc:v1:all:",
		"/registry/events/ns/e": "{}", "/registry/configmaps/ns/c": "k8s:enc:aescbc:v1:all:"} {
		if _, err := c.backend.Put(t.Context(), key, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := s.rewrite(t); err != nil {
			t.Fatal(err)
		}
		view, err := c.backend.View(t.Context(), raftstore.ViewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if item, _ := view.Get(key); !strings.HasPrefix(string(item.Value), want) {
			t.Errorf("%s is %q", key, item.Value)
		}
	}
}

// TestWritesAreFenced: a write that began by an earlier state does not come after the file in use
// has changed. It is the state that was read before all else that the write requires.
func TestWritesAreFenced(t *testing.T) {
	c := newCluster(t, "one")
	s := c.start(t, "s1", entry("secrets", keyed("secretbox", "k1", 1)))
	c.use(t, s)
	began := c.epoch.Revision
	sealed, before, err := s.transformers.TransformerForResource(secrets).(storage.Sealer).Seal(t.Context(),
		[]byte("x"), at("/registry/secrets/ns/s"))
	if err != nil || before != (raftstore.Precondition{Key: guard, ModRevision: began}) ||
		encryption.Label(sealed) != c.epoch.Labels[0] {
		t.Fatalf("%q requires %+v, %v", sealed, before, err)
	}
	s.reload(t, entry("secrets", keyed("secretbox", "k2", 2), keyed("secretbox", "k1", 1)))
	s.create(t, "between") // the file is not in use yet
	if got := c.stored(t, "between"); !strings.HasPrefix(got, encryption.Prefix) {
		t.Errorf("%q", got)
	}
	c.use(t, s)
	_, err = c.backend.Commit(t.Context(),
		raftstore.Txn{Require: []raftstore.Precondition{before},
			Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/registry/secrets/ns/s", Value: sealed}}})
	if _, refused := errors.AsType[*raftstore.ConflictError](err); !refused {
		t.Errorf("a value of the earlier file is written: %v", err)
	}
	s.create(t, "t")
	if got := c.stored(t, "t"); !strings.HasPrefix(got, "k8s:enc:secretbox:v1:k2:") {
		t.Errorf("%q", got)
	}
}

// TestReload: a changed file counts after two reads, and a faulty one does not; without the flag no
// change counts before the next start.
func TestReload(t *testing.T) {
	c := newCluster(t, "one")
	s := c.start(t, "s1", entry("secrets", keyed("secretbox", "k1", 1)))
	took := 0
	s.providers.cfg.Took = func() { took++ }
	digest := s.providers.Digest()
	s.write(t, entry("secrets", keyed("secretbox", "k2", 2), keyed("secretbox", "k1", 1)))
	s.providers.file.Check(t.Context())
	if s.providers.Digest() != digest {
		t.Error("one look is enough: the file may be half written")
	}
	s.providers.file.Check(t.Context())
	if s.providers.Digest() == digest || took != 1 {
		t.Errorf("it does not count, told %d times", took)
	}
	digest = s.providers.Digest()
	for _, wrong := range []string{"", "- resources: [secrets]\n",
		entry("secrets", "{secretbox: {keys: [{name: k1, secret: AAAA}]}}"),
		entry("events", keyed("secretbox", "k1", 1))} {
		problem := s.reload(t, wrong)
		if problem == "" || s.providers.Digest() != digest {
			t.Errorf("%q counts: %q", wrong, problem)
		}
		if strings.Contains(problem, fileFlag) || strings.Contains(problem, s.path) { // the state has these
			t.Errorf("%q says twice what file it is about", problem)
		}
	}
	c.use(t, s)
	s.create(t, "s")
	if got := c.stored(t, "s"); !strings.HasPrefix(got, "k8s:enc:secretbox:v1:k2:") {
		t.Errorf("%q", got)
	}
	s.reload(t, entry("secrets", keyed("secretbox", "k2", 2), keyed("secretbox", "k1", 1)))
	if got := s.providers.file.State(); got.Problem != "" || got.Flag != fileFlag {
		t.Errorf("%+v", got)
	}

	fixed, err := New(
		Config{Options: &Options{File: s.path}, Server: "s2", Others: func() ([]Other, bool) { return nil, true },
			Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer fixed.end()
	s.write(t, entry("secrets", keyed("secretbox", "k3", 3)))
	for range 2 {
		fixed.file.Check(t.Context())
	}
	if state := fixed.Files()[0]; !strings.Contains(state.Problem, "next start") || fixed.Digest() != digest {
		t.Errorf("%+v", state)
	}
}

// TestAgreement: another file than the one in use needs all servers, and all must run. The one in
// use needs those that run. Without a file anywhere no other server is needed.
func TestAgreement(t *testing.T) {
	const own, other = "sha256:00000001", "sha256:00000002"
	labels := []string{"k8s:enc:secretbox:v1:k1"}
	for what, c := range map[string]struct {
		own     bool // a file
		listed  string
		others  []Other
		unknown bool
		sick    error
		want    string // of the reason; empty: they agree
	}{
		"alone":                        {own: true},
		"no file":                      {others: []Other{{Name: "a", Alive: true}}},
		"no file, before the API":      {unknown: true},
		"no file, one is off":          {others: []Other{{Name: "a"}}},
		"no file any more":             {listed: own, others: []Other{{Name: "a", Alive: true}}},
		"no file any more, one is off": {listed: own, others: []Other{{Name: "a", File: 1}}, want: "do not run: a"},
		"the others have one": {others: []Other{{Name: "a", Alive: true, File: 7}},
			want: "differs between servers"},
		"the same": {own: true, others: []Other{{Name: "a", Alive: true, File: 1, Keys: 5}}},
		"the others have none": {own: true, others: []Other{{Name: "a", Alive: true}},
			want: "a (without a file)"},
		"in use, and the others have none": {own: true, listed: own, others: []Other{{Name: "a", Alive: true}},
			want: "a (without a file)"},
		"one with it is off": {own: true, listed: other, others: []Other{{Name: "a", File: 1, Keys: 5}},
			want: "do not run: a"},
		"in use, and one is off":        {own: true, listed: own, others: []Other{{Name: "a", File: 7}}},
		"in use, and one was never met": {own: true, listed: own, others: []Other{{Name: "a"}}},
		"before the API":                {own: true, unknown: true, want: "does not know yet"},
		"other keys": {own: true, listed: own,
			others: []Other{{Name: "a", Alive: true, File: 1, Keys: 6}},
			want:   "same key on these servers as on this one, or do not decrypt its values: a"},
		"keys are not known": {own: true, others: []Other{{Name: "a", Alive: true, File: 1}},
			want: "same key on these servers as on this one, or do not decrypt its values: a"},
		"a plugin is not healthy": {own: true, listed: own, sick: errors.New("it is away"),
			want: "it is away"},
	} {
		p, err := New(
			Config{Options: new(Options), Server: "s", Others: func() ([]Other, bool) { return c.others, !c.unknown }})
		if err != nil {
			t.Fatal(err)
		}
		if c.own {
			g := &generation{hash: own}
			g.looked.Store(&looked{err: c.sick, labels: labels})
			p.current.Store(g)
			for i := range c.others {
				if c.others[i].Keys == 5 {
					c.others[i].Keys = p.Keys()
				}
			}
		}
		is, err := p.Agreed(t.Context(), c.listed, false)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) ||
			err == nil && c.own && (is.File != own || !slices.Equal(is.Labels, labels)) {
			t.Errorf("%s: %+v, %v, want %q", what, is, err, c.want)
		}
		p.end()
	}
}

// TestSight: a server with a wrong file, or without one, detects that it cannot read values of the
// others, and that it can again. So it does if no server can read them.
func TestSight(t *testing.T) {
	c := newCluster(t, "one")
	right, wrong := entry("secrets", keyed("secretbox", "k1", 1)), entry("secrets", keyed("secretbox", "k1", 2))
	a := c.start(t, "a", right)
	c.use(t, a)
	a.create(t, "s")
	b, none := c.start(t, "b", wrong), c.start(t, "c", "")
	reads := func(what string, s *server, want bool) {
		t.Helper()
		o := &encryption.Objects{Store: c.backend, Transformers: s.transformers, Now: time.Now}
		changes := 0
		sight := encryption.NewSight(func() *encryption.Objects { return o }, nil, func() { changes++ })
		if sight.Err() == nil || sight.Blind() != nil {
			t.Errorf("%s: before the first look it is %v, %v", what, sight.Err(), sight.Blind())
		}
		sight.Look(t.Context())
		if err := sight.Err(); (err == nil) != want || changes != 1 ||
			err != nil && !strings.Contains(err.Error(), "/registry/secrets/ns/") {
			t.Errorf("%s: %v", what, err)
		}
	}
	reads("the right file", a, true)
	reads("a wrong file", b, false)
	reads("no file", none, false)
	if problem := b.reload(t, right); problem != "" {
		t.Fatal(problem)
	}
	reads("mended", b, true)
	if _, err := c.backend.Put(t.Context(), "/registry/secrets/ns/a",
		[]byte("k8s:enc:secretbox:v1:k1:damaged")); err != nil {
		t.Fatal(err)
	}
	reads("one value is damaged", a, true)
	c.servers = c.servers[:2]
	for _, s := range c.servers {
		if problem := s.reload(t, wrong); problem != "" {
			t.Fatal(problem)
		}
		reads("all have the same wrong file", s, false)
	}
}

// TestSightWaitsForTheAPI: the first check is right after the API is made, and the next one
// on request.
func TestSightWaitsForTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "one")
		o := &encryption.Objects{Store: c.backend, Transformers: encryption.New(c, guard), Now: time.Now}
		ready, looks := make(chan struct{}), 0
		sight := encryption.NewSight(func() *encryption.Objects { return o }, ready, func() { looks++ })
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = sight.Run(ctx) })
		synctest.Wait()
		if looks != 0 || sight.Err() == nil {
			t.Errorf("%d looks before the API, %v", looks, sight.Err())
		}
		close(ready)
		synctest.Wait()
		if looks != 1 || sight.Err() != nil {
			t.Errorf("%d looks at the API, %v", looks, sight.Err())
		}
		sight.Again()
		synctest.Wait()
		if looks != 2 {
			t.Errorf("%d looks", looks)
		}
		stop()
		running.Wait()
	})
}

// TestRewriteHolds: this server gets another file while it rewrites as the leader. The rewrite is
// not done then, and no object is in two forms.
func TestRewriteHolds(t *testing.T) {
	c := newCluster(t, "one")
	a := c.start(t, "a", entry("secrets", keyed("secretbox", "k1", 1)))
	for i := range 300 {
		a.create(t, fmt.Sprint(i))
	}
	c.use(t, a)
	o := &encryption.Objects{Store: c.backend, Transformers: a.transformers, Now: time.Now}
	reports := 0
	err := o.Rewrite(t.Context(), 0, c.epoch, func(int) {
		if reports++; reports == 2 { // midway
			a.reload(t, entry("secrets", keyed("secretbox", "k2", 2), keyed("secretbox", "k1", 1)))
		}
	})
	if err == nil || !strings.Contains(err.Error(), "not any more, the one that is in use") {
		t.Fatalf("the rewrite is done, after %d reports: %v", reports, err)
	}
	if _, err := o.Left(t.Context(), c.epoch); err == nil {
		t.Error("nothing is left by another file")
	}
	c.use(t, a)
	if err := o.Rewrite(t.Context(), 0, c.epoch, func(int) {}); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if got := c.stored(t, fmt.Sprint(i)); !strings.HasPrefix(got, "k8s:enc:secretbox:v1:k2:") {
			t.Fatalf("%q", got)
		}
	}
}

// TestLoad: the fault of a file is reported, with its place, and without the keys in it.
func TestLoad(t *testing.T) {
	kms := func(version string) string { return "{kms: {" + version + "name: p, endpoint: unix:///run/p.sock}}" }
	for text, want := range map[string]string{
		"":                               "the file is empty",
		"a: b":                           "no apiVersion or kind",
		head:                             "resources",
		head + entry("secrets"):          "providers",
		head + entry("secrets", "{}"):    "does not contain any of the expected providers",
		head + entry("secrets", kms("")): "v1",
		head +
			entry("secrets",
				kms("apiVersion: v1, ")): `resources[0].providers[0].kms: the plugin "p" is of the KMS API v1`,
		head +
			entry("secrets", kms("apiVersion: v3, ")): "unsupported apiVersion",
		head +
			entry("secrets", "{kms: {apiVersion: v2, name: p, endpoint: 'tcp://127.0.0.1:1'}}"): "unsupported scheme",
		head +
			entry("secrets",
				"{kms: {apiVersion: v2, name: 'a:b', endpoint: 'unix:///p'}}"): "invalid KMS provider name",
		head +
			entry("secrets", kms("apiVersion: v2, "), kms("apiVersion: v2, ")): "duplicate",
		head +
			entry("events", keyed("aescbc", "k", 1)): `objects of the resource "events" cannot be encrypted`,
		head +
			entry("services", keyed("aescbc", "k", 1)): `objects of the resource "services" cannot be encrypted`,
		head +
			entry("Secrets", keyed("aescbc", "k", 1)): "capital",
		head +
			entry("'*'", keyed("aescbc", "k", 1)): "use '*.'",
		head +
			entry("secrets",
				"{aescbc: {keys: [{name: k, secret: "+key(1)+
					", other: x}]}}"): "resources[0].providers[0].aescbc.keys[0] has a field",
		head +
			entry("secrets", "{aescbc: {keys: [{name: k, secret: "+key(1)[:20]+"}]}}"): "secret",
		head +
			entry("secrets",
				"{identity: {}, aescbc: {keys: [{name: k, secret: "+key(1)+"}]}}"): "more than one provider",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\n":                 "want an EncryptionConfiguration",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [" + key(1) + "]\n": "",
		head +
			entry("secrets", "{aescbc: {keys: [{name: k, "+key(1)+": x}]}}"): "has a field",
		head + entry("secrets", "{aescbc: {keys: [{name: k, secret: &a "+key(1)+", x: *b}]}}"): "",
		head +
			entry("secrets", "{aescbc: {keys: "+key(1)+"}}"): "cannot be decoded",
		head +
			entry("secrets", "{aescbc: {keys: [{name: k, secret: \"\\q"+key(1)+"\"}]}}"): "cannot be decoded",
		head + entry("secrets", "{aescbc: {keys: [{name: k, secret: {"+key(1)+": x}}]}}"):                         "",
		head + entry("secrets", "{aescbc: {keys: [{name: k, secret: "+key(1)+"}]}}") + "  bad indent: [" + key(1): "",
	} {
		_, err := Load([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v: want %q", text, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), key(1)) || strings.Contains(err.Error(), key(1)[:20])) {
			t.Errorf("the error shows a key: %v", err)
		}
	}
	for _, good := range []string{entry("secrets", keyed("aescbc", "k", 1)), entry("events", "{identity: {}}"),
		entry("'*.*'", kms("apiVersion: v2, "), "{identity: {}}"),
		entry("widgets.example.com, '*.apps'", keyed("secretbox", "k", 1))} {
		if _, err := Load([]byte(head + good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	if err := (&Options{Reload: true}).Check(); err == nil {
		t.Error("a reload without a file is taken")
	}
	if err := (&Options{File: t.TempDir()}).Check(); err == nil || !strings.Contains(err.Error(), fileFlag) {
		t.Errorf("a directory: %v", err)
	}
	if digestOf(configfile.Hash([]byte("a"))) == digestOf(configfile.Hash([]byte("b"))) ||
		digestOf("sha256:00000000") == 0 {
		t.Error("two contents have one digest, or one has none")
	}
}

// FuzzLoad: no content crashes the server, and none is taken that could write a resource without a
// provider, or by a plugin of KMS v1.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(head + entry("secrets", keyed("aescbc", "k", 1), "{identity: {}}")))
	f.Add([]byte(head + entry("'*.*'", "{kms: {apiVersion: v2, name: p, endpoint: 'unix:///p', timeout: 3s}}")))
	f.Add(
		[]byte(
			head + entry("events", "{identity: {}}") +
				entry("'*.apps'", keyed("secretbox", "k", 1), keyed("aesgcm", "k", 2))))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Load(data)
		if err != nil {
			return
		}
		for _, entry := range config.Resources {
			for _, p := range entry.Providers {
				if p.KMS != nil && p.KMS.APIVersion != "v2" {
					t.Errorf("%q was taken: a plugin of %s", data, p.KMS.APIVersion)
				}
			}
		}
		first, _ := firstOf(config)
		for resource, name := range first {
			if name == "" || encryption.Never(resource) && name != identity {
				t.Errorf("%q was taken: %s by %q", data, resource, name)
			}
		}
	})
}
