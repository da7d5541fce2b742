package proxy

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// fakeKernel notes what is asked of it, and fails or forgets on demand. Its fields are the test's
// to look at and to change through do.
type fakeKernel struct {
	mu    sync.Mutex
	calls []string
	rules Rules
	fail  error

	flows     int   // how often stale flows were to be deleted
	flowsFail error // what became of that
}

func (k *fakeKernel) do(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func (k *fakeKernel) replace(rules Rules) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, "replace")
	if k.fail != nil {
		return k.fail
	}
	k.rules = rules
	return nil
}

func (k *fakeKernel) change(delta Delta) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, "change")
	return k.fail
}

func (k *fakeKernel) deleteFlows(staleFlows) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.flows++
	return k.flowsFail
}

// TestSync follows the proxy through failure and loss, in virtual time.
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		factory := informers.NewSharedInformerFactory(client, 0)
		p, err := New(Config{
			NodeName: here, Services: factory.Core().V1().Services(),
			EndpointSlices: factory.Discovery().V1().EndpointSlices(),
			PodNetwork:     netip.MustParsePrefix("10.42.0.0/16"),
			ServiceNetwork: netip.MustParsePrefix("10.43.0.0/16"),
		})
		if err != nil {
			t.Fatal(err)
		}
		kernel := &fakeKernel{}
		p.kernel, p.flows = kernel, kernel.deleteFlows
		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		// after waits and returns what was asked of the kernel in that time.
		after := func(d time.Duration) []string {
			t.Helper()
			<-time.After(d) // virtual
			synctest.Wait()
			var calls []string
			kernel.do(func() { calls, kernel.calls = kernel.calls, nil })
			return calls
		}
		expect := func(what string, got []string, want ...string) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("%s: kernel was asked to %v, want %v", what, got, want)
			}
		}
		add := func(name, ip string) {
			t.Helper()
			s := service(func(s *corev1.Service) { s.Name, s.Spec.ClusterIP = name, ip })
			if _, err := client.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}

		expect("start", after(time.Second), "replace")
		select {
		case <-p.Ready():
		default:
			t.Error("not ready")
		}
		expect("nothing happens", after(time.Hour))
		add("a", "10.43.0.1")
		expect("a service", after(time.Second), "change")

		kernel.do(func() { kernel.fail = errors.New("no") })
		add("b", "10.43.0.2")
		calls := after(10 * time.Second)
		if len(calls) < 3 || calls[0] != "change" || slices.Contains(calls[1:], "change") {
			t.Errorf("after a failure the whole is to be written: %v", calls)
		}
		kernel.do(func() { kernel.fail = nil })
		if calls := after(time.Minute); len(calls) != 1 || calls[0] != "replace" {
			t.Errorf("recovery: %v", calls)
		}
		want := plan(Snapshot{NodeName: here, Services: []*corev1.Service{
			service(func(s *corev1.Service) { s.Name, s.Spec.ClusterIP = "a", "10.43.0.1" }),
			service(func(s *corev1.Service) { s.Name, s.Spec.ClusterIP = "b", "10.43.0.2" }),
		}})
		kernel.do(func() {
			if !reflect.DeepEqual(kernel.rules, want) {
				t.Errorf("the kernel has %+v, want %+v", kernel.rules, want)
			}
		})

		p.Restore()
		expect("the table was deleted", after(time.Second), "replace")

		// What is left over is tried again though the rules need no change.
		kernel.do(func() { kernel.flows, kernel.flowsFail = 0, errors.New("no") })
		udp := service(
			func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports[0].Protocol = "10.43.0.3", corev1.ProtocolUDP })
		if _, err := client.CoreV1().Services("default").Create(ctx, udp, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("a service without endpoints", after(3*time.Second), "change")
		endpoints := slice(endpoint("10.42.2.5", "node-2", ready))
		endpoints.Ports[0].Protocol = &udp.Spec.Ports[0].Protocol
		if _, err := client.DiscoveryV1().EndpointSlices("default").Create(ctx, endpoints,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("a failure beside the rules", after(3*time.Second), "change")
		kernel.do(func() {
			if kernel.flows < 2 {
				t.Errorf("left-over work was tried %d times", kernel.flows)
			}
			kernel.flowsFail = nil
		})
		after(time.Minute)
		kernel.do(func() { kernel.flows = 0 })
		after(time.Minute)
		kernel.do(func() {
			if kernel.flows != 0 {
				t.Error("work that is done is done again")
			}
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
}

func TestStaleFlows(t *testing.T) {
	udp := func(pods ...string) Rules {
		s := service(nodePort)
		s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
		var endpoints []discoveryv1.Endpoint
		for _, pod := range pods {
			endpoints = append(endpoints, endpoint(pod, "node-2", ready))
		}
		slice := slice(endpoints...)
		slice.Ports[0].Protocol = &s.Spec.Ports[0].Protocol
		return plan(
			Snapshot{NodeName: here, Services: []*corev1.Service{s}, Slices: []*discoveryv1.EndpointSlice{slice}})
	}
	const one, two = "10.42.2.1", "10.42.2.2"
	for name, test := range map[string]struct {
		now, next Rules
		looked    bool // whether there is anything to look for
	}{
		"first backend":  {udp(), udp(one), true},
		"more backends":  {udp(one), udp(one, two), false},
		"backend lost":   {udp(one, two), udp(one), true},
		"all lost":       {udp(one), udp(), true},
		"service gone":   {udp(one), emptyRules(), true},
		"service is new": {emptyRules(), udp(one), true},
		"same":           {udp(one), udp(one), false},
	} {
		t.Run(name, func(t *testing.T) {
			stale := staleBetween(test.now, test.next)
			if got := len(stale.allowed) > 0; got != test.looked {
				t.Fatalf("looks for %v", stale.allowed)
			}
			if !test.looked {
				return
			}
			serves := len(test.next.Frontends) > 0
			for _, asked := range []string{"10.43.0.10:80", "192.0.2.9:30080"} {
				if stale.MatchConntrackFlow(flow(asked, one+":8080")) == serves {
					t.Errorf("%s: entry to %s: wrong", asked, one)
				}
				if !stale.MatchConntrackFlow(flow(asked, "10.42.2.9:8080")) {
					t.Errorf("%s: entry to a backend that is gone stays", asked)
				}
			}
			if stale.MatchConntrackFlow(flow("10.43.0.99:80", one+":8080")) {
				t.Error("another service's entry goes")
			}
		})
	}
}
