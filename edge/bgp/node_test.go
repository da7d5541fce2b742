package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/edge/bgp/speaker"
	"github.com/barque/barque/edge/pool"
)

// recorded is an announcer that keeps what it is told.
type recorded struct {
	mu       sync.Mutex
	peers    []speaker.Peer
	routes   map[netip.Prefix]speaker.Attributes
	sessions []speaker.Session
	stopped  error
	ever     bool // it had peers
}

func (r *recorded) SetPeers(p []speaker.Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peers, r.ever = p, r.ever || len(p) > 0
}

func (r *recorded) SetRoutes(of map[netip.Prefix]speaker.Attributes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routes = of
}

func (r *recorded) Sessions() []speaker.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sessions)
}

func (r *recorded) Stop(why error) { r.stopped = why }

// told is what is announced, to whom.
func (r *recorded) told() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, p := range r.peers {
		out = append(out, p.Name)
	}
	for p := range r.routes {
		out = append(out, p.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// world is a Node in a cluster that is a fake.
type world struct {
	t       *testing.T
	client  *fake.Clientset
	speaker recorded
	away    atomic.Bool // no read reaches the cluster
	down    bool        // the machine
	config  speaker.Config
	node    *Node
	events  []string
	end     func()
}

func untyped(t *testing.T, kind string, o any) *unstructured.Unstructured {
	t.Helper()
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	out := &unstructured.Unstructured{Object: u}
	out.SetAPIVersion("edge.barque.io/v1")
	out.SetKind(kind)
	return out
}

// newWorld runs the node a.
func newWorld(t *testing.T, peers []*Object, objects ...runtime.Object) *world {
	w := &world{t: t, client: fake.NewClientset(objects...)}
	w.client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if w.away.Load() {
			return true, nil, errors.New("no leader")
		}
		return false, nil, nil
	})
	custom := []runtime.Object{untyped(t, "AddressPool", poolOf("bgp", nil, []string{"BGP"}, "198.51.100.0/28"))}
	for _, p := range peers {
		custom = append(custom, untyped(t, "BGPPeer", p))
	}
	all, err := newObjects(dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{pool.Resource: "AddressPoolList", Resource: "BGPPeerList"}, custom...),
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(w.client, 0)
	w.node, err = NewNode(NodeConfig{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Objects: all,
		Nodes: factory.Core().V1().Nodes(), Services: factory.Core().V1().Services(),
		Slices: factory.Discovery().V1().EndpointSlices(), Client: silent{w.client.CoreV1(), &w.away},
		GoesDown: func(context.Context) bool { return w.down },
		Tell:     func(_, reason, message string) { w.events = append(w.events, reason+": "+message) },
		newSpeaker: func(c speaker.Config) announcer {
			w.config = c
			return &w.speaker
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	factory.Start(ctx.Done())
	running.Go(func() { _ = all.Run(ctx) })
	running.Go(func() {
		if err := w.node.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	w.end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
	})
	return w
}

// announces compares after a while.
func (w *world) announces(after time.Duration, want string) {
	w.t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if got := w.speaker.told(); got != want {
		w.t.Errorf("it announces %q, want %q", got, want)
	}
}

func (w *world) change(node *corev1.Node) {
	w.t.Helper()
	have, err := w.client.CoreV1().Nodes().Get(w.t.Context(), node.Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	node.Annotations = have.Annotations
	if _, err := w.client.CoreV1().Nodes().Update(w.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// TestBegin: a process makes its first sessions when the node has been Ready for a while, with all
// routes, and those stay when it stops. Of a machine that goes down they do not.
func TestBegin(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			other := object("s", func(s *Spec) {
				s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "2"}}
			})
			w := newWorld(t, []*Object{object("r", nil), other}, nodeAt("a", "192.0.2.1", false, nil),
				service("web", false, "198.51.100.1"))
			defer w.end()
			w.down = down
			w.announces(time.Hour, "")
			w.change(nodeAt("a", "192.0.2.1", true, nil))
			w.announces(settle-time.Second, "")
			w.announces(settle+time.Second, "198.51.100.1/32 r")
			w.change(nodeAt("a", "192.0.2.1", false, nil))
			w.announces(time.Second, "r")
			w.change(nodeAt("a", "192.0.2.1", true, map[string]string{corev1.LabelNodeExcludeBalancers: ""}))
			w.announces(time.Second, "r")
			w.change(nodeAt("a", "192.0.2.1", true, map[string]string{"rack": "2"}))
			w.announces(time.Second, "198.51.100.1/32 r s")
			w.node.Freeze()
			w.change(nodeAt("a", "192.0.2.1", false, nil))
			w.announces(time.Minute, "198.51.100.1/32 r s")
			w.end()
			want := map[bool]error{false: speaker.ErrAway, true: speaker.ErrLeaving}[down]
			if !errors.Is(w.speaker.stopped, want) {
				t.Errorf("it has stopped with %v", w.speaker.stopped)
			}
			if w.config.ID != netip.MustParseAddr("192.0.2.1") {
				t.Errorf("its identifier is %v", w.config.ID)
			}
		})
	}
}

// TestADeletedNodeHasNoSessions: a machine that is no node any more leaves its routers.
func TestADeletedNodeHasNoSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []*Object{object("r", nil)}, nodeAt("a", "192.0.2.1", true, nil),
			service("web", false, "198.51.100.1"))
		defer w.end()
		w.announces(time.Minute, "198.51.100.1/32 r")
		if err := w.client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.announces(time.Second, "")
	})
}

// TestStale: a node that does not reach the cluster for StaleAfter withdraws its routes, and
// announces them again when it does.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []*Object{object("r", nil)}, nodeAt("a", "192.0.2.1", true, nil),
			service("web", false, "198.51.100.1"))
		defer w.end()
		w.announces(time.Hour, "198.51.100.1/32 r")
		w.away.Store(true)
		w.announces(StaleAfter-probeEvery, "198.51.100.1/32 r")
		w.announces(2*probeEvery, "r")
		const event = "BGPRoutesWithdrawn: This node has not reached the cluster for 2m0s, and has withdrawn its routes"
		if len(w.events) != 1 || w.events[0] != event {
			t.Errorf("the events are %q", w.events)
		}
		w.announces(time.Hour, "r")
		w.away.Store(false)
		w.announces(2*probeEvery, "198.51.100.1/32 r")
	})
}

// TestPasswords: a peer without its password is told of, and gets none of the sessions.
func TestPasswords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := object("r", func(s *Spec) { s.PasswordSecret = "bgp" })
		w := newWorld(t, []*Object{named}, nodeAt("a", "192.0.2.1", true, nil))
		defer w.end()
		w.announces(time.Minute, "")
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bgp"},
			Data: map[string][]byte{"password": []byte("a secret\n")}}
		if got := w.node.sessions(); len(got) != 1 || got[0].Problem != "the Secret kube-system/bgp of the password is not there" {
			t.Errorf("the sessions are %+v", got)
		}
		secrets := w.client.CoreV1().Secrets("kube-system")
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.announces(time.Minute, "r")
		if got := w.speaker.peers[0].Password; got != "a secret" {
			t.Errorf("the password is %q", got)
		}
		secret.Data["password"] = []byte("")
		if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.announces(2*passwordEvery, "")
		if got := w.node.sessions(); len(got) != 1 || !strings.Contains(got[0].Problem, "has 0 bytes; want 1 to 80") {
			t.Errorf("the sessions are %+v", got)
		}
	})
}

// silent is a cluster that answers no question about Secrets while it is away.
type silent struct {
	typedcorev1.CoreV1Interface
	away *atomic.Bool
}

type silentSecrets struct {
	typedcorev1.SecretInterface
	away *atomic.Bool
}

func (s silent) Secrets(namespace string) typedcorev1.SecretInterface {
	return silentSecrets{s.CoreV1Interface.Secrets(namespace), s.away}
}

func (s silentSecrets) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	if s.away.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.SecretInterface.Get(ctx, name, o)
}

// TestManyPasswords: the wait for passwords is one, however many peers have one. A node without
// contact withdraws its routes in time.
func TestManyPasswords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{nodeAt("a", "192.0.2.1", true, nil), service("w", false, "198.51.100.1")}
		var peers []*Object
		want := "198.51.100.1/32"
		for i := range 30 {
			name := fmt.Sprintf("r%02d", i)
			want += " " + name
			peers = append(peers, object(name, func(s *Spec) { s.PasswordSecret = name }))
			objects = append(objects, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
				Data:       map[string][]byte{"password": []byte("a secret")}})
		}
		w := newWorld(t, peers, objects...)
		defer w.end()
		w.announces(time.Minute, want)
		w.away.Store(true)
		w.announces(StaleAfter+4*probePatience, strings.TrimPrefix(want, "198.51.100.1/32 "))
	})
}

// TestTelling: the sessions are in the Node, in events and in metrics.
func TestTelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []*Object{object("r", nil)}, nodeAt("a", "192.0.2.1", true, nil))
		defer w.end()
		w.announces(time.Minute, "r")
		inNode := func() string {
			node, err := w.client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return node.Annotations[Annotation]
		}
		becomes := func(state speaker.State, problem string) {
			w.speaker.mu.Lock()
			w.speaker.sessions = []speaker.Session{{Peer: "r", Address: netip.MustParseAddr("192.0.2.254"),
				State: state, Since: time.Unix(1000, 7), Problem: problem, Routes: 1}}
			w.speaker.mu.Unlock()
			w.config.Changed(speaker.Session{})
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		becomes(speaker.Idle, "nobody listens")
		becomes(speaker.Connect, "nobody listens")
		becomes(speaker.Established, "")
		const want = `[{"peer":"r","address":"192.0.2.254","established":true,"since":"1970-01-01T00:16:40Z","routes":1}]`
		if got := inNode(); got != want {
			t.Errorf("the Node has %s\nwant %s", got, want)
		}
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Annotation: want}}}
		if got := SessionsOf(&node); len(got) != 1 || !got[0].Established || got[0].Peer != "r" {
			t.Errorf("it is read as %+v", got)
		}
		const metrics = `# HELP barque_edge_bgp_routes Routes that this node announces to the peer.
# TYPE barque_edge_bgp_routes gauge
barque_edge_bgp_routes{peer="r"} 1
# HELP barque_edge_bgp_session_established 1 while this node has a BGP session with the peer, and 0 while it has none.
# TYPE barque_edge_bgp_session_established gauge
barque_edge_bgp_session_established{peer="r"} 1
`
		if err := testutil.CollectAndCompare(w.node, strings.NewReader(metrics)); err != nil {
			t.Error(err)
		}
		becomes(speaker.Idle, "it is gone")
		wanted := []string{"BGPSessionFailed: There is no BGP session with r (192.0.2.254): nobody listens",
			"BGPSessionEstablished: The BGP session with r (192.0.2.254) is established",
			"BGPSessionLost: The BGP session with r (192.0.2.254) is lost: it is gone"}
		if !slices.Equal(w.events, wanted) {
			t.Errorf("the events are %q", w.events)
		}
		writes := 0
		for _, a := range w.client.Actions() {
			if a.Matches("patch", "nodes") {
				writes++
			}
		}
		if writes != 3 {
			t.Errorf("the Node was written %d times", writes)
		}
	})
}

// TestSecretOfAWrongPeer: a peer with which nobody has a session lets nobody read its password. One
// whose selector cannot be read would let all nodes.
func TestSecretOfAWrongPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := object("r", func(s *Spec) { s.PasswordSecret, s.NodeSelector = "bgp", wrongSelector })
		good := object("s", func(s *Spec) { s.PasswordSecret = "other" })
		w := newWorld(t, []*Object{named, good}, nodeAt("a", "192.0.2.1", true, nil))
		defer w.end()
		w.announces(time.Minute, "")
		if o := w.node.config.Objects; o.NamesSecret(nil, "bgp") || !o.NamesSecret(nil, "other") {
			t.Errorf("the Secrets may be read: %t and %t", o.NamesSecret(nil, "bgp"), o.NamesSecret(nil, "other"))
		}
	})
}

// TestIdentifier: a node without IPv4 has a number of its own.
func TestIdentifier(t *testing.T) {
	six := []netip.Addr{netip.MustParseAddr("2001:db8::1")}
	if a, b := identifier("a", six), identifier("b", six); a == b || !a.Is4() || a.IsUnspecified() {
		t.Errorf("the identifiers are %v and %v", a, b)
	}
}
