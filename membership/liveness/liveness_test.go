package liveness

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// evidence is gossip and store as the test has them.
type evidence struct {
	mu      sync.Mutex
	members map[string]gossip.Member
	silent  []SilentServer
	inPool  chan struct{}
	inStore chan struct{}
}

func newEvidence() *evidence {
	return &evidence{members: map[string]gossip.Member{}, inPool: make(chan struct{}), inStore: make(chan struct{})}
}

func (e *evidence) Member(name string) (gossip.Member, bool) { m, ok := e.members[name]; return m, ok }

func (e *evidence) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inPool
}

func (e *evidence) Silent() ([]SilentServer, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.silent, e.inStore
}

func (e *evidence) change(which *chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(*which)
	*which = make(chan struct{})
}

// A Node says whether it is a member's. Gossip may know better; its memory of another machine of
// the name does not count.
func TestWhoIsAMember(t *testing.T) {
	died := time.Unix(1000, 0)
	labelled := func(n *corev1.Node) bool { _, is := n.Labels["member"]; return is }
	for name, c := range map[string]struct {
		labelled bool
		gossip   gossip.State // "": never heard of
		made     time.Time
		silent   bool // the store misses it
		want     bool
	}{
		"labelled":                         {labelled: true, want: true},
		"labelled, and left":               {labelled: true, gossip: gossip.Left, want: true},
		"foreign":                          {want: false},
		"its kubelet has yet to say it":    {gossip: gossip.Alive, made: died.Add(time.Hour), want: true},
		"its kubelet never said it":        {gossip: gossip.Dead, made: died.Add(-time.Hour), want: true},
		"the name of one that was removed": {gossip: gossip.Dead, made: died.Add(time.Hour), want: false},
		"the name of one that left":        {gossip: gossip.Left, made: died.Add(-time.Hour), want: false},
		"a server that the store misses":   {silent: true, want: true},
	} {
		e := newEvidence()
		if c.gossip != "" {
			e.members["n"] = gossip.Member{Name: "n", State: c.gossip, Since: died}
		}
		if c.silent {
			e.silent = []SilentServer{{Name: "n", Since: died}}
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(c.made)}}
		if c.labelled {
			node.Labels = map[string]string{"member": ""}
		}
		if got := New(Config{Pool: e, Store: e, Labelled: labelled}).Member(node); got != c.want {
			t.Errorf("%s: member %v", name, got)
		}
	}
}

func TestLifeIsGossipAndStoreTogether(t *testing.T) {
	heard, silent := time.Unix(100, 0), time.Unix(200, 0)
	for name, c := range map[string]struct {
		gossip gossip.State // "": never heard of
		silent bool
		want   Life
		known  bool
	}{
		"both hear of it":            {gossip.Alive, false, Life{State: Alive, Since: heard}, true},
		"the store does not":         {gossip.Alive, true, Life{State: Suspect, Since: silent}, true},
		"neither does":               {gossip.Dead, true, Life{State: Dead, Since: heard}, true},
		"gossip does not":            {gossip.Dead, false, Life{State: Dead, Since: heard}, true},
		"it said good-bye":           {gossip.Left, true, Life{State: Left, Since: heard}, true},
		"only the store knows it":    {"", true, Life{State: Suspect, Since: silent}, true},
		"nobody has ever known it":   {"", false, Life{}, false},
		"another one is silent only": {gossip.Alive, false, Life{State: Alive, Since: heard}, true},
	} {
		e := newEvidence()
		e.silent = []SilentServer{{Name: "other", Since: silent}}
		if c.gossip != "" {
			e.members["n"] = gossip.Member{Name: "n", State: c.gossip, Since: heard}
		}
		if c.silent {
			e.silent = append(e.silent, SilentServer{Name: "n", Since: silent})
		}
		l := New(Config{Pool: e, Store: e})
		if life, known := l.Life("n"); life != c.want || known != c.known {
			t.Errorf("%s: %+v, %v", name, life, known)
		}
	}
}

// A node that is about to leave has left, as far as its pods are concerned: its kubelet stops
// first, and its gossip last.
func TestLifeOfANodeThatIsAboutToLeave(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	for name, pulse := range map[string]asked{
		"its kubelet answers still":        {heard: at(300)},
		"its kubelet does not answer more": {since: at(200), heard: at(199)},
	} {
		e := newEvidence()
		e.members["n"] = gossip.Member{Name: "n", State: gossip.Alive, Since: at(100), GoodbyeSince: at(198)}
		want := Life{State: Left, Since: at(198)}
		if life, known := New(Config{Pool: e, Store: e, Pulse: pulse}).Life("n"); life != want || !known {
			t.Errorf("%s: %+v, %v", name, life, known)
		}
	}
}

// asked is a pulse as the test has it.
type asked struct {
	since, heard time.Time // since when it is silent, if it is
}

func (a asked) Silent(string) (time.Time, bool) { return a.since, !a.since.IsZero() }
func (a asked) Heard(string) time.Time          { return a.heard }
func (a asked) Changed() <-chan struct{}        { return nil }

func TestLifeByThePulse(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	for name, c := range map[string]struct {
		gossip gossip.State // since 100
		pulse  asked
		want   Life
	}{
		"all hear of it": {gossip.Alive, asked{heard: at(200)}, Life{State: Alive, Since: at(100)}},
		"it does not answer": {gossip.Alive, asked{since: at(200), heard: at(199)},
			Life{State: Suspect, Since: at(200)}},
		"gossip finds out later": {gossip.Dead, asked{since: at(95), heard: at(94)},
			Life{State: Dead, Since: at(95)}},
		"gossip finds out first": {gossip.Dead, asked{since: at(101), heard: at(99)},
			Life{State: Dead, Since: at(101)}},
		"gossip may be wrong":   {gossip.Dead, asked{heard: at(99)}, Life{State: Alive, Since: at(100)}},
		"it has never answered": {gossip.Dead, asked{}, Life{State: Dead, Since: at(100)}},
		"gossip is wrong":       {gossip.Dead, asked{heard: at(101)}, Life{State: Alive, Since: at(100)}},
		"gossip was wrong, and it died then": {gossip.Dead, asked{since: at(200), heard: at(199)},
			Life{State: Dead, Since: at(200)}},
		"it said good-bye": {gossip.Left, asked{since: at(200), heard: at(199)},
			Life{State: Left, Since: at(100)}},
		"never heard of": {"", asked{}, Life{}},
	} {
		e := newEvidence()
		if c.gossip != "" {
			e.members["n"] = gossip.Member{Name: "n", State: c.gossip, Since: at(100)}
		}
		l := New(Config{Pool: e, Store: e, Pulse: c.pulse})
		if life, known := l.Life("n"); life != c.want || known != (c.gossip != "") {
			t.Errorf("%s: %+v, %v", name, life, known)
		}
	}
}

func TestLastSeen(t *testing.T) {
	e := newEvidence()
	e.members["well"] = gossip.Member{Name: "well", State: gossip.Alive, Since: time.Unix(100, 0)}
	e.members["dead"] = gossip.Member{Name: "dead", State: gossip.Dead, Since: time.Unix(200, 0)}
	l := New(Config{Pool: e, Store: e})
	if at, ok := l.LastSeen("well"); !ok || time.Since(at) > time.Minute {
		t.Errorf("one that is well was seen at %s, %v", at, ok)
	}
	if at, ok := l.LastSeen("dead"); !ok || !at.Equal(time.Unix(200, 0)) {
		t.Errorf("one that is dead was seen at %s, %v", at, ok)
	}
	if at, ok := l.LastSeen("unknown"); ok || !at.IsZero() {
		t.Errorf("an unknown node was seen at %s", at)
	}
}

func TestIllnessIsWhatKeepsFromRunningPods(t *testing.T) {
	for health, want := range map[gossip.Health]string{
		0: "", gossip.DiskLow | gossip.MemoryLow | gossip.PIDsLow: "", gossip.KubeletIll: "kubelet",
		gossip.RuntimeIll | gossip.NetworkIll | gossip.DiskLow: "runtime, network",
		gossip.LockedOut: "certificates",
	} {
		e := newEvidence()
		e.members["n"] = gossip.Member{Name: "n", State: gossip.Alive, Facts: gossip.Facts{Health: health}}
		if life, _ := New(Config{Pool: e, Store: e}).Life("n"); life.Ill != want {
			t.Errorf("%v: ill is %q, want %q", health.Faults(), life.Ill, want)
		}
	}
}

func TestChangesOfGossipAndStoreArePassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvidence()
		l := New(Config{Pool: e, Store: e})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		for _, source := range []*chan struct{}{&e.inPool, &e.inStore, &e.inPool} {
			changed := l.Changed()
			synctest.Wait()
			select {
			case <-changed:
				t.Error("a change was announced, and there was none")
			default:
			}
			e.change(source)
			<-changed
			synctest.Wait()
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestConfirmWantsMoreThanAConnection(t *testing.T) {
	kubelet := httptest.NewTLSServer(http.NotFoundHandler())
	defer kubelet.Close()
	stopped, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, and no answer comes
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	trusting := kubelet.Client().Transport.(*http.Transport).TLSClientConfig
	at := func(address net.Addr) *corev1.Node {
		addr := address.(*net.TCPAddr)
		return &corev1.Node{Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"},
				{Type: corev1.NodeInternalIP, Address: addr.IP.String()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(addr.Port)}},
		}}
	}
	const never, soon = 200 * time.Millisecond, time.Minute
	for name, c := range map[string]struct {
		node  *corev1.Node
		tls   *tls.Config
		limit time.Duration
		want  bool
	}{
		"the kubelet answers":       {at(kubelet.Listener.Addr()), trusting, soon, true},
		"somebody else answers":     {at(kubelet.Listener.Addr()), &tls.Config{}, soon, false},
		"a process that is stopped": {at(stopped.Addr()), trusting, never, false},
		"it has no address":         {&corev1.Node{}, trusting, soon, false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), c.limit) // brief: a process that is stopped never answers
		l := New(Config{TLS: func(string) *tls.Config { return c.tls }})
		if got := l.Confirm(ctx, c.node); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		cancel()
	}
}

// TestConfirmWantsTheNodeItself: another machine of the cluster may have the address of a dead one,
// and a genuine certificate for it.
func TestConfirmWantsTheNodeItself(t *testing.T) {
	ca, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	serving, err := identity.New(t.Context(),
		identity.Config{Name: "kubelet", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
			Issue: pki.TrustOf(ca).Signs(func() pki.Request {
				request := join.NodeServing("b1", netip.MustParseAddr("127.0.0.1"))
				request.Lifetime = time.Hour
				return request
			}, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	kubelet := httptest.NewUnstartedServer(http.NotFoundHandler())
	kubelet.TLS = &tls.Config{Certificates: []tls.Certificate{*serving.Certificate()}}
	kubelet.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are part of the test
	kubelet.StartTLS()
	defer kubelet.Close()
	at := kubelet.Listener.Addr().(*net.TCPAddr)
	l := New(Config{TLS: func(member string) *tls.Config {
		return &tls.Config{RootCAs: ca.Pool(),
			VerifyConnection: func(peer tls.ConnectionState) error { return join.IsKubelet(member, peer) }}
	}})
	for name, want := range map[string]bool{"b1": true, "a1": false} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.IP.String()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(at.Port)}},
		}}
		if got := l.Confirm(t.Context(), node); got != want {
			t.Errorf("%s is confirmed: %v", name, got)
		}
	}
}
