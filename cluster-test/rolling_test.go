package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// All three servers are restarted, one after the other, while twenty clients read, write and watch
// through all of them. No client that tries a second time, at the next server, is refused. No watch
// is cut off in the middle, loses an event or has to list again. A server has left the endpoints of
// the kubernetes Service before its port closes, and the pods' Service answers all the time.
func TestRollingRestart(t *testing.T) {
	s := newSpace(t)
	s.Apply(staying(hello("hello", 3, "nowhere")))
	s.Apply(`
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {type: NodePort, selector: {app: hello}, ports: [{port: 80, targetPort: 8080}]}
`)
	s.K("rollout", "status", "deployment/hello", "--timeout=2m")
	containers := s.containers("app=hello")
	recoverCluster(t, s.Cluster, s.Nodes()...)
	servers, err := s.Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	r := &rolling{Space: s, servers: servers}
	finish := r.begin()
	for _, n := range servers {
		r.restart(n.Name)
	}
	finish()
	if after := s.containers("app=hello"); after != containers {
		t.Errorf("the containers before:\n%safter:\n%s", containers, after)
	}
}

// begin starts the clients. The returned function ends and judges them; it may be called once.
func (r *rolling) begin() (finish func()) {
	ctx, stop := context.WithCancel(r.Context())
	r.Cleanup(stop)
	var clients sync.WaitGroup
	run := func(n int, client func(ctx context.Context, i int)) {
		for i := range n {
			clients.Go(func() { client(ctx, i) })
		}
	}
	watchers := make([]*follower, 5)
	for i := range watchers {
		watchers[i] = r.newFollower(i)
	}
	run(len(watchers), func(ctx context.Context, i int) { watchers[i].run(ctx) })
	run(5, r.write)
	run(5, r.read)
	run(5, r.plain)
	run(1, func(ctx context.Context, _ int) { r.visit(ctx) })
	run(1, func(ctx context.Context, _ int) { r.keepPace(ctx) })
	r.ports = r.watchPorts(ctx, &clients)

	return func() {
		r.Helper()
		r.settle(watchers)
		stop()
		clients.Wait()
		r.Logf("%d calls, %d of them at the second try; %d visits of the Service; the longest call took %v",
			r.calls.Load(), r.retries.Load(), r.visits.Load(), time.Duration(r.longest.Load()).Round(time.Millisecond))
		for _, f := range r.failures {
			r.Error(f)
		}
		if r.calls.Load() < 100 || r.visits.Load() < 20 {
			r.Error("there were too few calls for a judgement")
		}
		r.checkWatches(watchers)
		r.ports.check(r)
	}
}

// restart stops a node and starts it again.
func (r *rolling) restart(node string) {
	r.Helper()
	began := time.Now()
	r.Dev(r, "stop", node)
	stopped := time.Since(began)
	r.Dev(r, "start", node)
	r.Logf("%s: stopped in %v, ready again %v after that", node, stopped.Round(time.Millisecond),
		(time.Since(began) - stopped).Round(time.Millisecond))
}

// rolling is the state that the clients of a rolling restart share.
type rolling struct {
	*Space
	servers []Process
	ports   *ports

	calls, retries, visits, longest atomic.Int64

	mu       sync.Mutex
	failures []string
	created  map[string]bool // names of the acknowledged creations
	stood    time.Time       // when this process last went on after it had stood still
}

// keepPace notes when this process, of which a busy machine may make nothing for a while, has stood
// still.
func (r *rolling) keepPace(ctx context.Context) {
	const still = 500 * time.Millisecond
	for last := time.Now(); ctx.Err() == nil; {
		breathe(ctx)
		now := time.Now()
		if now.Sub(last) > still { // brief: nothing fails by it
			r.mu.Lock()
			r.stood = now
			r.mu.Unlock()
		}
		last = now
	}
}

// stoodStill reports whether this process has stood still since a time.
func (r *rolling) stoodStill(ctx context.Context, since time.Time) bool {
	for range 5 { // the goroutine that notes r.stood runs meanwhile, too
		breathe(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stood.After(since)
}

func (r *rolling) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) < 20 {
		r.failures = append(r.failures,
			fmt.Sprintf("%s: ", time.Now().Format("15:04:05.000"))+fmt.Sprintf(format, args...))
	}
}

// twice makes a call, and once more, at the next server, when it fails.
func (r *rolling) twice(ctx context.Context, what string, call func() error) {
	began := time.Now()
	first := call()
	if first != nil && ctx.Err() == nil {
		r.retries.Add(1)
		if second := call(); second != nil && ctx.Err() == nil {
			r.fail("%s failed twice: %v; and at the next server: %v", what, first, second)
		}
	}
	r.calls.Add(1)
	took := int64(time.Since(began))
	longest := r.longest.Load()
	for took > longest && !r.longest.CompareAndSwap(longest, took) { // brief: it is only reported
		longest = r.longest.Load()
	}
}

const (
	// callTimeout is long: in a restart in order nothing hangs.
	callTimeout = 10 * time.Second
	// rollingLabel is on the watched objects.
	rollingLabel = "rolling"
	// pause lies between two calls of a client.
	pause = 20 * time.Millisecond
)

func (r *rolling) failoverClient(first int) *FailoverClient {
	m, err := r.NewFailoverClient(r.servers, first, callTimeout)
	if err != nil {
		panic(err) // the kubeconfig is the one that the test already uses
	}
	r.Cleanup(m.Close)
	return m
}

// breathe waits for a moment, or until ctx ends.
func breathe(ctx context.Context) {
	select {
	case <-time.After(pause): // brief: a client rests between its calls
	case <-ctx.Done():
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{rollingLabel: "yes"}}}
}

// acknowledged notes a created object, and one that may have been: an answer to a second try that
// the object is there.
func (r *rolling) acknowledged(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.created == nil {
		r.created = map[string]bool{}
	}
	r.created[name] = true
}

// write creates objects with client-go.
func (r *rolling) write(ctx context.Context, i int) {
	m := r.failoverClient(i)
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("w-%d-%d", i, n)
		tries := 0
		r.twice(ctx, "create "+name, func() error {
			tries++
			return m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) error {
				_, err := c.CoreV1().ConfigMaps(r.Namespace).Create(ctx, configMap(name), metav1.CreateOptions{})
				if tries > 1 && apierrors.IsAlreadyExists(err) {
					err = nil
				}
				if err == nil {
					r.acknowledged(name)
				}
				return err
			})
		})
		breathe(ctx)
	}
}

// read gets and lists with client-go.
func (r *rolling) read(ctx context.Context, i int) {
	m := r.failoverClient(i)
	for n := 0; ctx.Err() == nil; n++ {
		r.twice(ctx, "read", func() error {
			return m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) error {
				if n%5 == 0 {
					_, err := c.CoreV1().Services(r.Namespace).List(ctx, metav1.ListOptions{})
					return err
				}
				_, err := c.CoreV1().Services(r.Namespace).Get(ctx, "hello", metav1.GetOptions{})
				return err
			})
		})
		breathe(ctx)
	}
}

// plain creates and gets with net/http.
func (r *rolling) plain(ctx context.Context, i int) {
	m := r.failoverClient(i)
	path := "/api/v1/namespaces/" + r.Namespace + "/configmaps"
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("p-%d-%d", i, n)
		body, err := json.Marshal(configMap(name))
		if err != nil {
			r.Error(err)
			return
		}
		tries := 0
		r.twice(ctx, "POST "+name, func() error {
			tries++
			status, err := m.HTTP(ctx, http.MethodPost, path, body, nil)
			if err == nil && status != http.StatusCreated && !(tries > 1 && status == http.StatusConflict) {
				err = fmt.Errorf("the answer is %d", status)
			}
			if err == nil {
				r.acknowledged(name)
			}
			return err
		})
		r.twice(ctx, "GET "+name, func() error {
			status, err := m.HTTP(ctx, http.MethodGet, path+"/"+name, nil, nil)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("the answer is %d", status)
			}
			return err
		})
		breathe(ctx)
	}
}

// visit calls the Service at all nodes all the time.
func (r *rolling) visit(ctx context.Context) {
	port := r.K("get", "service", "hello", "-o", "jsonpath={.spec.ports[0].nodePort}")
	for ctx.Err() == nil {
		for _, n := range r.servers {
			began := time.Now()
			if err := get(ctx, "http://"+net.JoinHostPort(n.Address, port), "Hello from"); err != nil &&
				ctx.Err() == nil {
				if errors.Is(err, context.DeadlineExceeded) && r.stoodStill(ctx, began) {
					r.Logf("the Service at %s: %v, and this process stood still meanwhile", n.Name, err)
				} else {
					r.fail("the Service at %s: %v", n.Name, err)
				}
			}
			r.visits.Add(1)
		}
		breathe(ctx)
	}
}

// follower watches, and goes on at the next server where it was when a watch ends.
type follower struct {
	*rolling
	failoverClient *FailoverClient
	revision       string

	mu   sync.Mutex
	seen []string
	ends int
}

func (r *rolling) newFollower(i int) *follower {
	f := &follower{rolling: r, failoverClient: r.failoverClient(i)}
	list, err := r.Client.CoreV1().ConfigMaps(r.Namespace).List(r.Context(),
		metav1.ListOptions{LabelSelector: rollingLabel})
	if err != nil {
		r.Fatal(err)
	}
	f.revision = list.ResourceVersion
	return f
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		var stream *http.Response
		f.twice(ctx, "watch", func() (err error) {
			stream, err = f.failoverClient.open(ctx, http.MethodGet,
				"/api/v1/namespaces/"+f.Namespace+"/configmaps?watch=1&allowWatchBookmarks=true&labelSelector="+
					rollingLabel+"&resourceVersion="+f.revision, nil)
			if err == nil && stream.StatusCode != http.StatusOK {
				err = fmt.Errorf("the answer is %s", stream.Status)
			}
			return err
		})
		if stream == nil {
			continue
		}
		if err := f.follow(stream.Body); ctx.Err() == nil {
			f.mu.Lock()
			f.ends++
			f.mu.Unlock()
			if !errors.Is(err, io.EOF) {
				f.fail("a watch was cut off: %v", err)
			}
			f.failoverClient.Move()
		}
		stream.Body.Close()
	}
}

// follow reads events until there are none any more.
func (f *follower) follow(stream io.Reader) error {
	for events := json.NewDecoder(stream); ; {
		var e struct {
			Type   string
			Object struct{ Metadata metav1.ObjectMeta }
		}
		if err := events.Decode(&e); err != nil {
			return err
		}
		if e.Type == "ERROR" {
			f.fail("a watch from revision %s was refused", f.revision)
			return io.EOF
		}
		f.revision = e.Object.Metadata.ResourceVersion
		if e.Type != "BOOKMARK" {
			f.mu.Lock()
			f.seen = append(f.seen, e.Type+" "+e.Object.Metadata.Name)
			f.mu.Unlock()
		}
	}
}

// settle stops nothing, but waits until each watcher has seen an object that is made now.
func (r *rolling) settle(all []*follower) {
	r.Helper()
	const last = "last"
	Eventually(r, deadline, "what is made last", func(ctx context.Context) error {
		_, err := r.Client.CoreV1().ConfigMaps(r.Namespace).Create(ctx, configMap(last), metav1.CreateOptions{})
		return exceptExists(err)
	})
	for i, f := range all {
		Eventually(r, deadline, fmt.Sprintf("watcher %d sees what was made last", i), func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if !slices.Contains(f.seen, "ADDED "+last) {
				return fmt.Errorf("it has seen %d events", len(f.seen))
			}
			return nil
		})
	}
}

// checkWatches compares the events of the watchers with each other and with the
// acknowledged writes.
func (r *rolling) checkWatches(all []*follower) {
	r.Helper()
	upTo := func(f *follower) []string { return f.seen[:slices.Index(f.seen, "ADDED last")] }
	first := upTo(all[0])
	for i, f := range all {
		if f.ends == 0 {
			r.Errorf("watcher %d has not met a server that stopped", i)
		}
		if !slices.Equal(upTo(f), first) {
			r.Errorf("watcher %d has seen %d events, watcher 0 %d, and not the same", i, len(upTo(f)), len(first))
		}
	}
	counts := map[string]int{}
	for _, e := range all[0].seen {
		counts[e]++
	}
	for name := range r.created {
		if n := counts["ADDED "+name]; n > 1 {
			r.Errorf("%s was told %d times", name, n)
		}
	}
	list, err := r.Client.CoreV1().ConfigMaps(r.Namespace).List(r.Context(),
		metav1.ListOptions{LabelSelector: rollingLabel})
	if err != nil {
		r.Fatal(err)
	}
	there := map[string]bool{}
	for _, m := range list.Items {
		there[m.Name] = true
	}
	for name := range r.created {
		if !there[name] {
			r.Errorf("%s was acknowledged and is not there", name)
		}
	}
}

// ports is when each server left the endpoints of the kubernetes Service, and when its port was
// closed.
type ports struct {
	mu     sync.Mutex
	left   map[string]time.Time
	closed map[string]time.Time
	// open has the last time at which a port was seen open. Observations after it are late by at
	// most the time until the port was seen closed, and so may be those of the endpoints: the tests
	// may have stood still.
	open map[string]time.Time
}

// watchPorts looks at both until ctx ends.
func (r *rolling) watchPorts(ctx context.Context, running *sync.WaitGroup) *ports {
	p := &ports{left: map[string]time.Time{}, closed: map[string]time.Time{}, open: map[string]time.Time{}}
	note := func(into map[string]time.Time, address string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if into[address].IsZero() {
			into[address] = time.Now()
		}
	}
	for _, n := range r.servers {
		running.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				conn, err := net.DialTimeout("tcp", net.JoinHostPort(n.Address, apiPort),
					time.Second) // brief: it looks again and again
				switch {
				case err == nil:
					conn.Close()
					p.wasOpen(n.Address, began)
				case errors.Is(err, syscall.ECONNREFUSED): // all else is no answer in time
					note(p.closed, n.Address)
				}
				breathe(ctx)
			}
		})
	}
	// Each server is asked, and the first to report it counts.
	for i := range r.servers {
		running.Go(func() {
			m := r.failoverClient(i)
			for ctx.Err() == nil {
				m.at = i
				r.followEndpoints(ctx, m, func(address string) { note(p.left, address) })
				breathe(ctx)
			}
		})
	}
	return p
}

// followEndpoints watches the endpoints of the kubernetes Service at one server until that ends,
// and reports each server that is not among them.
func (r *rolling) followEndpoints(ctx context.Context, m *FailoverClient, absent func(address string)) {
	stream, err := m.open(ctx, http.MethodGet,
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?watch=1&labelSelector=kubernetes.io/service-name%3Dkubernetes", nil)
	if err != nil {
		return // it is being restarted
	}
	defer stream.Body.Close()
	for events := json.NewDecoder(stream.Body); ; {
		var e struct{ Object discoveryv1.EndpointSlice }
		if events.Decode(&e) != nil {
			return
		}
		var have []string
		for _, endpoint := range e.Object.Endpoints {
			have = append(have, endpoint.Addresses...)
		}
		for _, n := range r.servers {
			if len(have) > 0 && !slices.Contains(have, n.Address) {
				absent(n.Address)
			}
		}
	}
}

// forget drops all observations.
func (p *ports) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.left)
	clear(p.closed)
	clear(p.open)
}

// wasOpen notes that a port was open, until it is closed.
func (p *ports) wasOpen(address string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed[address].IsZero() {
		p.open[address] = at
	}
}

func (p *ports) check(t testing.TB) {
	t.Helper()
	for address, closed := range p.closed {
		left, ok := p.left[address]
		late := closed.Sub(p.open[address])
		t.Logf("%s was out of the endpoints %v before its port closed, which was seen at most %v late", address,
			closed.Sub(left).Round(time.Millisecond), late.Round(time.Millisecond))
		if !ok || left.After(closed.Add(late)) {
			t.Errorf("%s closed its port at %v, and was out of the endpoints at %v", address, closed, left)
		}
	}
	if len(p.closed) != 3 {
		t.Errorf("the ports of %d servers were seen closed, want 3", len(p.closed))
	}
}
