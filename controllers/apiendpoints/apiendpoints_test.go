package apiendpoints_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/apiendpoints"
	"github.com/barque/barque/controllers/controllertest"
)

type servers struct {
	mu      sync.Mutex
	list    []netip.AddrPort
	changed chan struct{}
}

func (s *servers) Servers() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list
}

func (s *servers) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *servers) are(list ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = nil
	for _, l := range list {
		s.list = append(s.list, netip.MustParseAddrPort(l))
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func TestEndpointsFollowServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		s := &servers{changed: make(chan struct{})}
		s.are("10.0.0.2:6443", "10.0.0.1:6443")
		var ill sync.Map // servers that are not ready
		ctrl, err := apiendpoints.New(
			apiendpoints.Config{Informers: c.Informers, Servers: s,
				Ready: func(_ context.Context, server netip.AddrPort) error {
					if _, is := ill.Load(server.String()); is {
						return errors.New("not ready")
					}
					return nil
				}})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		// look returns the addresses in the slices and in the Endpoints, which must agree.
		look := func() []string {
			var slicesHave, endpointsHave []string
			l, err := c.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, slice := range l.Items {
				for _, e := range slice.Endpoints {
					slicesHave = append(slicesHave, e.Addresses[0])
				}
			}
			e, err := c.Client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
			if err != nil {
				return nil
			}
			for _, subset := range e.Subsets {
				for _, a := range subset.Addresses {
					endpointsHave = append(endpointsHave, a.IP)
				}
			}
			slices.Sort(slicesHave)
			slices.Sort(endpointsHave)
			if !slices.Equal(slicesHave, endpointsHave) {
				return nil
			}
			return slicesHave
		}
		expect := func(want ...string) {
			t.Helper()
			controllertest.Eventually(t, "the endpoints", func() bool { return slices.Equal(look(), want) })
		}
		expect("10.0.0.1", "10.0.0.2")
		ill.Store("10.0.0.1:6443", true) // it is alive, and not ready
		expect("10.0.0.2")
		ill.Store("10.0.0.2:6443", true) // no server is ready: a mistake
		ill.Delete("10.0.0.1:6443")
		expect("10.0.0.1")
		ill.Delete("10.0.0.2:6443")
		expect("10.0.0.1", "10.0.0.2")
		s.are("10.0.0.2:6443", "10.0.0.3:6443", "10.0.0.4:7443") // one dies, two come, one on another port
		expect("10.0.0.2", "10.0.0.3", "10.0.0.4")
		s.are("10.0.0.3:6443")
		expect("10.0.0.3")
		s.are() // no server is ready: a mistake
		if err := c.Client.CoreV1().Endpoints("default").Delete(t.Context(), "kubernetes",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.are("10.0.0.3:6443")
		expect("10.0.0.3") // and deleted endpoints come back
	})
}

// A new leader does not know which servers are ready. Until it does, the endpoints stay: one slow
// answer proves nothing.
func TestANewLeaderKeepsTheEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		s := &servers{changed: make(chan struct{})}
		s.are("10.0.0.1:6443", "10.0.0.2:6443", "10.0.0.3:6443")
		var mu sync.Mutex
		slow := map[string]int{} // how many questions a server still does not answer
		ctrl, err := apiendpoints.New(
			apiendpoints.Config{Informers: c.Informers, Servers: s,
				Ready: func(ctx context.Context, server netip.AddrPort) error {
					mu.Lock()
					hangs := slow[server.String()] > 0
					slow[server.String()]--
					mu.Unlock()
					if hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				}})
		if err != nil {
			t.Fatal(err)
		}
		addresses := func() (out []string) {
			t.Helper()
			e, err := c.Client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, subset := range e.Subsets {
				for _, a := range subset.Addresses {
					out = append(out, a.IP)
				}
			}
			return out
		}
		abdicate := c.Start(ctrl.Run)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := addresses(); len(got) != 3 {
			t.Fatalf("the endpoints are %v", got)
		}
		abdicate()
		c.Client.ClearActions()

		mu.Lock()
		slow["10.0.0.2:6443"] = 1
		mu.Unlock()
		abdicate = c.Start(ctrl.Run)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, a := range c.Client.Actions() {
			if a.GetVerb() != "list" && a.GetVerb() != "watch" && a.GetVerb() != "get" {
				t.Errorf("one slow answer: %s %s", a.GetVerb(), a.GetResource().Resource)
			}
		}
		abdicate()

		mu.Lock()
		slow["10.0.0.2:6443"] = 1000 // and a dead server does not delay the others
		mu.Unlock()
		s.are("10.0.0.1:6443", "10.0.0.2:6443")
		abdicate = c.Start(ctrl.Run)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if got := addresses(); !slices.Equal(got, []string{"10.0.0.1", "10.0.0.2"}) {
			t.Errorf("after half a second the endpoints are %v", got)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := addresses(); !slices.Equal(got, []string{"10.0.0.1"}) {
			t.Errorf("of a server that does not answer, the endpoints are %v", got)
		}
		abdicate()
	})
}
