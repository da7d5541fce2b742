package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	kstorage "k8s.io/apiserver/pkg/storage"
	kmsapi "k8s.io/kms/apis/v2"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/internal/await"
)

// plugin is a KMS v2 plugin at a socket. It wraps a key by its key's ID and an exclusive or: the
// tests are about the server's handling of its answers.
type plugin struct {
	kmsapi.UnimplementedKeyManagementServiceServer
	socket  string
	timeout time.Duration // of the file

	mu       sync.Mutex
	keyID    string // of the key that encrypts
	secret   string // of all keys of this KMS
	lies     string // the false answer of Status
	healthz  string
	hang     chan struct{} // calls wait until it is closed
	decrypts atomic.Int32
	asked    atomic.Int32 // for its status
	server   *grpc.Server
}

func newPlugin(t *testing.T) *plugin {
	dir, err := os.MkdirTemp("", "kms") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{socket: filepath.Join(dir, "s"), timeout: 5 * time.Second, keyID: "one", healthz: "ok"}
	t.Cleanup(func() {
		p.set(func() { p.release() })
		p.stop()
		_ = os.RemoveAll(dir)
	})
	return p
}

func (p *plugin) start(t *testing.T) *plugin {
	t.Helper()
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	p.server = grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(p.server, p)
	go func() { _ = p.server.Serve(l) }() // ends with stop
	return p
}

func (p *plugin) stop() {
	if p.server != nil {
		p.server.Stop()
	}
}

func (p *plugin) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *plugin) release() {
	if p.hang != nil {
		close(p.hang)
		p.hang = nil
	}
}

func (p *plugin) wait(ctx context.Context) error {
	p.mu.Lock()
	hang := p.hang
	p.mu.Unlock()
	if hang == nil {
		return nil
	}
	select {
	case <-hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func mix(id string, data []byte) []byte {
	out := bytes.Clone(data)
	for i := range out {
		out[i] ^= id[i%len(id)] ^ 0x55
	}
	return out
}

// Status implements the API of KMS v2.
func (p *plugin) Status(ctx context.Context, _ *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	p.asked.Add(1)
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.keyID
	if p.lies != "" {
		id = p.lies
	}
	return &kmsapi.StatusResponse{Version: "v2", Healthz: p.healthz, KeyId: id}, nil
}

// Encrypt implements the API of KMS v2.
func (p *plugin) Encrypt(ctx context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &kmsapi.EncryptResponse{Ciphertext: mix(p.secret+p.keyID, r.Plaintext), KeyId: p.keyID}, nil
}

// Decrypt implements the API of KMS v2.
func (p *plugin) Decrypt(ctx context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	p.decrypts.Add(1)
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	return &kmsapi.DecryptResponse{Plaintext: mix(p.secret+r.KeyId, r.Ciphertext)}, nil
}

func (p *plugin) provider(name string) string {
	return fmt.Sprintf("{kms: {apiVersion: v2, name: %s, endpoint: 'unix://%s', timeout: %s}}", name, p.socket,
		p.timeout)
}

// healthy is the check of the plugins, as in /readyz and /healthz.
func (s *server) healthy(ctx context.Context) error {
	s.providers.lookAtPlugins(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/kms-providers", nil)
	if err != nil {
		return err
	}
	return s.providers.Health().Check(r)
}

// unavailable checks that a read failed because of the plugin, and that nothing was taken for
// absent or lost.
func (s *server) unavailable(t *testing.T, name string) {
	t.Helper()
	before := s.cluster.stored(t, name)
	err := s.read(t, name)
	if err == nil || kstorage.IsNotFound(err) || !strings.Contains(err.Error(), "/registry/secrets/ns/"+name) ||
		!strings.Contains(err.Error(), s.path) {
		t.Errorf("%s on %s: %v", name, s.name, err)
	}
	sealer := s.transformers.TransformerForResource(secrets)
	_, _, err = sealer.TransformFromStorage(t.Context(), []byte(before), at("/registry/secrets/ns/"+name))
	if _, is := errors.AsType[*storage.UnavailableError](err); !is {
		t.Errorf("%s on %s counts as lost: %v", name, s.name, err)
	}
	if err := s.update(t, name); err == nil || s.cluster.stored(t, name) != before {
		t.Errorf("%s on %s was overwritten: %v", name, s.name, err)
	}
}

// TestKMS: values are under a key of the plugin, which is requested once. A new ID of its key makes
// them stale: a rewrite brings all under it.
func TestKMS(t *testing.T) {
	p := newPlugin(t).start(t)
	c := newCluster(t, "one")
	s := c.start(t, "s1", entry("secrets", p.provider("vault")))
	await.NoError(t, "it is healthy", s.healthy)
	if name := s.providers.Health().Name(); name != "kms-providers" {
		t.Errorf("the check is %s", name)
	}
	c.use(t, s)
	if want := encryption.LabelOfKMS("vault", "one"); !slices.Equal(c.epoch.Labels, []string{want}) {
		t.Errorf("%q", c.epoch.Labels)
	}
	for i := range 20 {
		s.create(t, fmt.Sprint(i))
	}
	if got := c.stored(t, "7"); !strings.HasPrefix(got, "k8s:enc:kms:v2:vault:") || strings.Contains(got, "hidden") {
		t.Errorf("%q", got)
	}
	// Another server, and this one after a restart, request the key from the plugin.
	again := c.start(t, "s1", entry("secrets", p.provider("vault")))
	await.NoError(t, "it is healthy", again.healthy)
	if n, err := again.list(t); n != 20 || err != nil || p.decrypts.Load() != 1 {
		t.Errorf("%d are read with %d questions, %v", n, p.decrypts.Load(), err)
	}
	c.servers = []*server{again}
	if err := again.rewrite(t); err != nil {
		t.Error(err)
	}
	counts := func(of *server) map[string]int {
		n, err := (&encryption.Objects{Store: c.backend, Transformers: of.transformers, Now: time.Now}).Count(
			t.Context(), c.epoch)
		if err != nil {
			t.Fatal(err)
		}
		return n.Under
	}
	one, two := encryption.LabelOfKMS("vault", "one"), encryption.LabelOfKMS("vault", "two")
	if got := counts(again); got[one] != 20 {
		t.Errorf("%v", got)
	}
	// The key changes inside of the KMS. This server takes the new one within a minute, and no
	// server takes it for settled before; a server that starts now has it at once.
	p.set(func() { p.keyID = "two" })
	if _, err := again.providers.Agreed(t.Context(), c.epoch.File, true); err == nil ||
		!strings.Contains(err.Error(), `names the key "two"`) {
		t.Errorf("an earlier key is settled: %v", err)
	}
	if err := again.healthy(t.Context()); again.providers.Keys() != 0 || err != nil {
		t.Errorf("it shows a key that is about to change, or is not healthy for that: %v", err)
	}
	renewed := c.start(t, "s2", entry("secrets", p.provider("vault")))
	await.NoError(t, "it is healthy", renewed.healthy)
	renewed.create(t, "unlisted")
	if got := c.stored(t, "unlisted"); !strings.HasPrefix(got, encryption.Prefix) {
		t.Errorf("a value is under a key that the state does not list: %q", got)
	}
	before := c.stored(t, "3")
	if err := renewed.rewrite(t); err == nil || !strings.Contains(err.Error(), "another key by now") {
		t.Errorf("a rewrite ends with a key that the state does not list: %v", err)
	}
	if err := c.tryUse(t, renewed); err == nil || !strings.Contains(err.Error(), "or do not decrypt its values: s1") {
		t.Errorf("the other server has the earlier key yet: %v", err)
	}
	c.servers = []*server{renewed}
	c.use(t, renewed)
	if _, stale, err := renewed.transformers.TransformerForResource(secrets).TransformFromStorage(t.Context(),
		[]byte(before), at("/registry/secrets/ns/3")); err != nil || !stale {
		t.Errorf("stale is %t, %v", stale, err)
	}
	if err := renewed.rewrite(t); err != nil || c.stored(t, "3") == before {
		t.Errorf("it is not rewritten: %v", err)
	}
	if got := counts(renewed); len(got) != 1 || got[two] != 21 {
		t.Errorf("%v", got)
	}
	// The server that was paused meanwhile has the earlier key in its memory, and does not write by
	// it.
	again.create(t, "paused")
	if got := c.stored(t, "paused"); !strings.HasPrefix(got, encryption.Prefix) {
		t.Errorf("a value is under a key that a rewrite has emptied: %q", got)
	}
	if err := again.read(t, "3"); err != nil {
		t.Errorf("the other server cannot read it: %v", err)
	}
}

// TestKMSThatComesLater: a server starts without its plugin. It is not healthy, reads values that
// need no plugin, refuses the rest, and recovers by itself when the plugin is there.
func TestKMSThatComesLater(t *testing.T) {
	p := newPlugin(t)
	p.timeout = time.Second
	c := newCluster(t, "one")
	before := c.start(t, "s0", "")
	before.create(t, "own")
	c.servers = nil
	s := c.start(t, "s1", entry("secrets", p.provider("vault")))
	if err := s.healthy(t.Context()); err == nil {
		t.Error("it is healthy")
	}
	if err := c.tryUse(t, s); err == nil {
		t.Error("a file is taken into use without its plugin")
	}
	c.epoch.File, c.epoch.Labels = s.providers.Now().File(), []string{encryption.LabelOfKMS("vault", "one")}
	c.step(t)
	if err := s.read(t, "own"); err != nil {
		t.Error(err)
	}
	if err := s.update(t, "own"); err == nil || !strings.HasPrefix(c.stored(t, "own"), encryption.Prefix) {
		t.Errorf("%v, %q", err, c.stored(t, "own"))
	}
	if err := s.rewrite(t); err == nil {
		t.Error("a rewrite ends without the plugin")
	}
	if is := s.providers.Status(); !strings.Contains(is.Problem, "a plugin is not healthy") {
		t.Errorf("%+v", is)
	}
	p.start(t)
	await.NoError(t, "the plugin is found", s.healthy)
	if err := s.rewrite(t); err != nil || !strings.HasPrefix(c.stored(t, "own"), "k8s:enc:kms:v2:vault:") {
		t.Errorf("%v, %q", err, c.stored(t, "own"))
	}
}

// TestKMSThatHangs: no request waits longer than the timeout of the file, whichever call hangs.
// Cached keys still work, and the rest is an error.
func TestKMSThatHangs(t *testing.T) {
	p := newPlugin(t).start(t)
	p.timeout = time.Second
	c := newCluster(t, "one")
	file := entry("secrets", p.provider("vault")) + entry("configmaps, zebras", keyed("secretbox", "k1", 1))
	a := c.start(t, "a", file)
	await.NoError(t, "a is healthy", a.healthy)
	c.use(t, a)
	for i := range 30 {
		a.create(t, fmt.Sprint(i))
	}
	for _, of := range []string{"configmaps", "zebras"} { // before and after the Secrets
		if _, err := c.backend.Put(t.Context(), "/registry/"+of+"/ns/x", []byte("clear")); err != nil {
			t.Fatal(err)
		}
	}
	p.set(func() { p.hang = make(chan struct{}) })
	b := c.start(t, "b", file) // without a key of the plugin
	if err := b.healthy(t.Context()); err == nil {
		t.Error("it is healthy")
	}
	b.unavailable(t, "1")
	if err := b.rewrite(t); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a rewrite: %v", err)
	}
	for _, of := range []string{"configmaps", "zebras"} {
		if got := c.at(t, "/registry/"+of+"/ns/x"); !strings.HasPrefix(got, "k8s:enc:secretbox:v1:k1:") {
			t.Errorf("%s wait for the plugin of others: %q", of, got)
		}
	}
	asked := p.asked.Load()
	for range 100 { // while it hangs, each would wait for the timeout
		if b.providers.Health().Check(nil) == nil || b.providers.Status().Problem == "" {
			t.Fatal("it is healthy")
		}
	}
	if p.asked.Load() != asked {
		t.Error("requests ask the plugin for its health")
	}
	if err := a.read(t, "1"); err != nil {
		t.Errorf("a has the key: %v", err)
	}
	a.create(t, "more")
	p.set(p.release)
	await.NoError(t, "b is healthy", b.healthy)
	if n, err := b.list(t); n != 31 || err != nil {
		t.Errorf("%d are read, %v", n, err)
	}
}

// TestKMSThatDies: a server that has a key of the plugin goes on with it; one that needs another
// key is refused until the plugin is back.
func TestKMSThatDies(t *testing.T) {
	p := newPlugin(t).start(t)
	p.timeout = time.Second
	c := newCluster(t, "one")
	file := entry("secrets", p.provider("vault"))
	a := c.start(t, "a", file)
	await.NoError(t, "a is healthy", a.healthy)
	c.use(t, a)
	a.create(t, "a")
	p.stop()
	b := c.start(t, "b", file) // after a restart it has no key in its memory
	a.create(t, "later")
	if err := a.read(t, "a"); err != nil {
		t.Error(err)
	}
	b.unavailable(t, "a")
	if err := p.socketGone(); err != nil {
		t.Fatal(err)
	}
	p.start(t)
	await.NoError(t, "b reads", func(context.Context) error { return b.read(t, "a") })
}

// socketGone removes the socket of a plugin that has died.
func (p *plugin) socketGone() error {
	err := os.Remove(p.socket)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return err
}

// TestKMSThatLies: a plugin whose status names another key than it encrypts with, none, or one that
// is too long, is not healthy, and nothing is written under a key that it does not have.
func TestKMSThatLies(t *testing.T) {
	for what, lie := range map[string]func(p *plugin){
		"another key":               func(p *plugin) { p.lies = "two" },
		"too long":                  func(p *plugin) { p.lies = strings.Repeat("x", 1100) },
		"no key":                    func(p *plugin) { p.keyID = "" },
		"it says it is not healthy": func(p *plugin) { p.healthz, p.lies = "no", "two" },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlugin(t).start(t)
			lie(p)
			c := newCluster(t, "one")
			s := c.start(t, "s", entry("secrets", p.provider("vault")))
			if err := s.healthy(t.Context()); err == nil {
				t.Error("it is healthy")
			}
			c.epoch.File, c.epoch.Labels = s.providers.Now().File(), []string{encryption.LabelOfKMS("vault", "three")}
			if err := s.tryCreate(t, "s"); err == nil || c.stored(t, "s") != "" {
				t.Errorf("%q is written: %v", c.stored(t, "s"), err)
			}
			p.set(func() { p.lies, p.keyID, p.healthz = "", "three", "ok" })
			await.NoError(t, "it is healthy", s.healthy)
			s.create(t, "s")
			if got := c.stored(t, "s"); !strings.HasPrefix(got, "k8s:enc:kms:v2:vault:") || s.read(t, "s") != nil {
				t.Errorf("%q, %v", got, s.read(t, "s"))
			}
		})
	}
}

// TestKMSWithEqualIDs: the KMS of two servers name different keys alike, as one on each machine
// may. The file is not taken into use before both decrypt the same value.
func TestKMSWithEqualIDs(t *testing.T) {
	one, other := newPlugin(t).start(t), newPlugin(t).start(t)
	other.secret = "another key "
	c := newCluster(t, "one")
	a, b := c.start(t, "a", entry("secrets", one.provider("vault"))),
		c.start(t, "b", entry("secrets", other.provider("vault")))
	// One file, as both machines have it: each has its own sockets.
	b.providers.current.Load().hash = a.providers.current.Load().hash
	await.NoError(t, "a is healthy", a.healthy)
	await.NoError(t, "b is healthy", b.healthy)
	if err := c.tryUse(t, a); err == nil || !strings.Contains(err.Error(), "do not decrypt its values: b") ||
		c.epoch.File != "" {
		t.Errorf("b cannot decrypt, and the file is in use: %v", err)
	}
	if a.providers.Keys() == 0 || b.providers.Keys() != 0 {
		t.Errorf("a shows %d, b shows %d", a.providers.Keys(), b.providers.Keys())
	}
	other.set(func() { other.secret = "" }) // it gets the same key
	c.servers = []*server{a}
	b = c.start(t, "b", entry("secrets", other.provider("vault"))) // it keeps the wrong one in its memory
	b.providers.current.Load().hash = a.providers.current.Load().hash
	await.NoError(t, "b is healthy", b.healthy)
	if err := c.tryUse(t, a); err != nil {
		t.Errorf("both decrypt: %v", err)
	}
	if a.providers.Keys() == 0 || b.providers.Keys() != a.providers.Keys() || len(c.epoch.Labels) != 1 {
		t.Errorf("a shows %d, b shows %d, %q", a.providers.Keys(), b.providers.Keys(), c.epoch.Labels)
	}
}

// TestBlindServers: nothing is taken into use or rewritten while a living server cannot read all.
func TestBlindServers(t *testing.T) {
	c := newCluster(t, "one")
	file := entry("secrets", keyed("secretbox", "k1", 1))
	a, b := c.start(t, "a", file), c.start(t, "b", file)
	b.blind = true
	if err := c.tryUse(t, a); err == nil || !strings.Contains(err.Error(), "these servers cannot read all objects: b") {
		t.Errorf("%v", err)
	}
	b.blind = false
	c.use(t, a)
}

// TestCancelledLook: a check whose caller goes, as at the end of leadership, changes nothing.
func TestCancelledLook(t *testing.T) {
	p := newPlugin(t).start(t)
	c := newCluster(t, "one")
	s := c.start(t, "s", entry("secrets", p.provider("vault")))
	c.use(t, s)
	keys := s.providers.Keys()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.providers.Agreed(gone, c.epoch.File, true); err != nil || s.providers.Keys() != keys ||
		s.providers.current.Load().unhealthy() != nil {
		t.Errorf("%v; it is not healthy for that: %v", err, s.providers.current.Load().unhealthy())
	}
}

// TestPluginWithoutTheResource: an object of a plugin is not lost while the file has the plugin,
// also if it does not name the object's resource any more.
func TestPluginWithoutTheResource(t *testing.T) {
	p := newPlugin(t).start(t)
	c := newCluster(t, "one")
	s := c.start(t, "s", entry("configmaps", p.provider("vault")))
	err := s.providers.Unreadable([]byte("k8s:enc:kms:v2:vault:x"), at("/registry/secrets/ns/s"), nil)
	if _, is := errors.AsType[*storage.UnavailableError](err); !is {
		t.Errorf("it counts as lost: %v", err)
	}
	err = s.providers.Unreadable([]byte("k8s:enc:kms:v2:other:x"), at("/registry/secrets/ns/s"), nil)
	if _, is := errors.AsType[*storage.UnavailableError](err); is {
		t.Errorf("one of a plugin that no file has does not count as lost: %v", err)
	}
}

// TestReloadOfAPlugin: a changed file whose plugin does not answer does not count. The earlier one
// goes on.
func TestReloadOfAPlugin(t *testing.T) {
	p := newPlugin(t)
	c := newCluster(t, "one")
	s := c.start(t, "s", entry("secrets", keyed("secretbox", "k1", 1)))
	c.use(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // brief: the test wants the time-out
	defer cancel()
	s.write(t, entry("secrets", p.provider("vault"), keyed("secretbox", "k1", 1)))
	data, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.providers.reload(ctx, data); err == nil || !strings.Contains(err.Error(), "not healthy") {
		t.Errorf("%v", err)
	}
	s.create(t, "early")
	p.start(t)
	if err := s.providers.reload(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	c.use(t, s)
	s.create(t, "late")
	for name, want := range map[string]string{"early": "k8s:enc:secretbox:v1:k1:", "late": "k8s:enc:kms:v2:vault:"} {
		if got := c.stored(t, name); !strings.HasPrefix(got, want) || s.read(t, name) != nil {
			t.Errorf("%s is %q, %v", name, got, s.read(t, name))
		}
	}
}

// TestKeysThatDiffer: a plugin has another key than another server's plugin, as while a key is
// exchanged. Nothing is settled before both encrypt with the same one.
func TestKeysThatDiffer(t *testing.T) {
	one, two := newPlugin(t).start(t), newPlugin(t).start(t)
	two.keyID = "two"
	c := newCluster(t, "one")
	a, other := c.start(t, "a", entry("secrets", one.provider("vault"))),
		c.start(t, "other", entry("secrets", two.provider("vault")))
	c.servers = []*server{a}
	await.NoError(t, "it is healthy", a.healthy)
	c.use(t, a)
	keys := a.providers.Keys()
	other.providers.lookAtPlugins(t.Context())
	for what, b := range map[string]Other{"the same": {Keys: keys}, "another key": {Keys: keys + 1}, "not known": {}} {
		b.Name, b.Alive, b.File = "b", true, a.providers.Digest()
		a.providers.cfg.Others = func() ([]Other, bool) { return []Other{b}, true }
		if _, err := a.providers.Agreed(t.Context(), c.epoch.File, true); (err == nil) != (b.Keys == keys) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if keys == 0 || other.providers.Keys() != 0 {
		t.Error("a healthy plugin shows no key, or one of which no value was decrypted is shown")
	}
	one.stop()
	if _, err := a.providers.Agreed(t.Context(), c.epoch.File, true); err == nil || a.providers.Keys() != 0 {
		t.Errorf("a plugin that is away is settled: %v", err)
	}
}
