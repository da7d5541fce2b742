package endpoints

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/edge/gateway/model"
)

// TestPool: a pool has the ready endpoints of its port, in turn, and changes with the Service.
func TestPool(t *testing.T) {
	name := types.NamespacedName{Namespace: "n", Name: "s"}
	var service *corev1.Service
	var slice *discoveryv1.EndpointSlice
	set := New(func(types.NamespacedName) (*corev1.Service, []*discoveryv1.EndpointSlice) {
		return service, []*discoveryv1.EndpointSlice{slice}
	})
	pool := set.Pool(&model.Backend{Service: name, Port: 80})
	if pool != set.Pool(&model.Backend{Service: name, Port: 80}) {
		t.Error("a port has two pools")
	}
	if state := pool.State(); state.Known {
		t.Errorf("without the Service: %+v", state)
	}
	endpoint := func(ready, serving bool, addresses ...string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: &ready,
			Serving: &serving, Terminating: ptr.To(!ready)}}
	}
	service = &corev1.Service{Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 80, Name: "http", AppProtocol: ptr.To("kubernetes.io/h2c")}}}}
	for _, c := range []struct {
		name      string
		endpoints []discoveryv1.Endpoint
		want      []string
	}{
		{"ready ones", []discoveryv1.Endpoint{endpoint(true, true, "192.0.2.2"), endpoint(true, true, "192.0.2.1"),
			endpoint(false, true, "192.0.2.3")}, []string{"192.0.2.1:8080", "192.0.2.2:8080"}},
		{"ending ones", []discoveryv1.Endpoint{endpoint(false, true, "192.0.2.3"), endpoint(false, false, "192.0.2.4")},
			[]string{"192.0.2.3:8080"}},
		{"two families", []discoveryv1.Endpoint{endpoint(true, true, "2001:db8::1"), endpoint(true, true, "192.0.2.1")},
			[]string{"192.0.2.1:8080"}},
		{"none", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			slice = &discoveryv1.EndpointSlice{
				Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}},
				Endpoints: c.endpoints,
			}
			set.Update(name)
			state := pool.State()
			var have []string
			for _, a := range state.Addrs {
				have = append(have, a.String())
			}
			if !state.Known || state.Protocol != model.H2C || !slices.Equal(have, c.want) {
				t.Errorf("%+v, want %v", state, c.want)
			}
			var tried []netip.AddrPort
			for addr, ok := pool.Pick(nil); ok; addr, ok = pool.Pick(tried) {
				tried = append(tried, addr)
			}
			slices.SortFunc(tried, netip.AddrPort.Compare)
			if !slices.Equal(tried, state.Addrs) {
				t.Errorf("picked %v", tried)
			}
		})
	}
}
