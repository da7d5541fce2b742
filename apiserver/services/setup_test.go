package services

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/apiserver/groups"
	coreservice "github.com/barque/barque/apiserver/groups/core/service"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/restoptions"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// server is what an API server has of Services: all but its front.
type server struct {
	*Allocator
	backend  storage.Backend
	services *serviceStorage
	status   rest.Updater
	cidrs    rest.StandardStorage
	ips      rest.StandardStorage
}

const defaultRange = "10.43.0.0/28" // 14 addresses, the first of which is the kubernetes Service's

// newServer makes a server over a store that others may share.
func newServer(t testing.TB, backend storage.Backend, change ...func(*Config)) *server {
	t.Helper()
	resources := groups.Resources()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	var uncached []schema.GroupResource
	for _, r := range resources {
		if err := r.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		uncached = append(uncached, r.GroupVersionResource().GroupResource())
	}
	options, err := restoptions.New(restoptions.Config{
		Backend: backend, Scheme: scheme, Serializer: serializer.NewCodecFactory(scheme), Uncached: uncached,
	})
	if err != nil {
		t.Fatal(err)
	}
	objects := func(r schema.GroupResource, example runtime.Object, prefix string) *storage.Objects {
		o, err := options.Objects(r, example, prefix)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	declared := resource.Find[corev1.Service](resources)
	cfg := Config{
		Backend: backend, CIDRs: []netip.Prefix{netip.MustParsePrefix(defaultRange)}, FirstPort: 30000, LastPort: 30011,
		Validate:     coreservice.ValidateAddresses,
		Services:     objects(corev1.Resource("services"), &corev1.Service{}, declared.Prefix),
		Addresses:    objects(networkingv1.Resource("ipaddresses"), &networkingv1.IPAddress{}, ""),
		ServiceCIDRs: objects(networkingv1.Resource("servicecidrs"), &networkingv1.ServiceCIDR{}, ""),
	}
	for _, c := range change {
		c(&cfg)
	}
	s := &server{backend: backend}
	if s.Allocator, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	options.Accompany(corev1.Resource("services"), s.Allocator)
	s.Attach(declared)
	install := func(r resource.Resource) map[string]rest.Storage {
		installed, err := r.Build(resource.Builder{Scheme: scheme, Options: options})
		if err != nil {
			t.Fatal(err)
		}
		return installed[0].Storage
	}
	build := func(r resource.Resource, name string) rest.Storage {
		st := install(r)[name]
		t.Cleanup(st.Destroy)
		return st
	}
	ofServices := install(declared)
	s.services = ofServices["services"].(*serviceStorage)
	s.status = ofServices["services/status"].(rest.Updater)
	t.Cleanup(s.services.Destroy)
	s.cidrs = build(resource.Find[networkingv1.ServiceCIDR](resources), "servicecidrs").(rest.StandardStorage)
	s.ips = build(resource.Find[networkingv1.IPAddress](resources), "ipaddresses").(rest.StandardStorage)
	return s
}

// alone is a server over a store in memory.
func alone(t *testing.T, change ...func(*Config)) *server {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = store.Close() })
	return newServer(t, store, change...)
}

func dualStack(c *Config) {
	c.CIDRs = append(c.CIDRs, netip.MustParsePrefix("fd00:43::/112"))
}

func inNamespace(ctx context.Context) context.Context { return request.WithNamespace(ctx, "ns") }

// port is a port of a Service as clients send it.
func port(name string, number int32, protocol corev1.Protocol, nodePort int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, Protocol: protocol, NodePort: nodePort}
}

// service is a Service with a port, as it is after defaulting.
func service(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"},
			Ports: []corev1.ServicePort{port("", 80, "", 0)}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func typed(t corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = t
		if t == corev1.ServiceTypeExternalName {
			s.Spec.ExternalName = "example.com"
		}
	}
}

func at(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		if s.Spec.ClusterIPs = ips; len(ips) > 0 {
			s.Spec.ClusterIP = ips[0]
		}
	}
}

// defaulted sends an object through the defaulting of its kind.
func (s *server) defaulted(o *corev1.Service) *corev1.Service {
	o = o.DeepCopy()
	resource.Find[corev1.Service](groups.Resources()).Default(o)
	return o
}

func (s *server) create(ctx context.Context, o *corev1.Service, dryRun ...string) (*corev1.Service, error) {
	out, err := s.services.Create(inNamespace(ctx), s.defaulted(o), nil, &metav1.CreateOptions{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	return out.(*corev1.Service), nil
}

// update changes what is stored, as a PATCH does.
func (s *server) update(
	ctx context.Context, name string, change func(*corev1.Service), dryRun ...string,
) (*corev1.Service, error) {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		o := old.DeepCopyObject().(*corev1.Service)
		change(o)
		return s.defaulted(o), nil
	})
	out, _, err := s.services.Update(inNamespace(ctx), name, info, nil, nil, false,
		&metav1.UpdateOptions{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	return out.(*corev1.Service), nil
}

func (s *server) delete(ctx context.Context, name string) error {
	_, _, err := s.services.Delete(inNamespace(ctx), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	return err
}

// addCIDR makes a ServiceCIDR.
func (s *server) addCIDR(t testing.TB, name string, cidrs ...string) *networkingv1.ServiceCIDR {
	t.Helper()
	out, err := s.cidrs.Create(request.WithNamespace(t.Context(), ""), newCIDR(name, cidrs...), nil,
		&metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out.(*networkingv1.ServiceCIDR)
}

// check finds what one view of the store has that must never be: a value with two Services, a value
// of a Service without reservation, IPAddress or ServiceCIDR, and these without a Service.
func (s *server) check(ctx context.Context, view raftstore.View) error {
	seen, err := s.inspect(ctx, view)
	if err != nil {
		return err
	}
	for key, holders := range seen.holders {
		if len(holders) > 1 {
			return fmt.Errorf("revision %d: %s has %d holders, %s and %s among them", view.Revision(), key,
				len(holders), owner(holders[0]), owner(holders[1]))
		}
		if item, ok := view.Get(key); !ok || string(item.Value) != owner(holders[0]) {
			return fmt.Errorf("revision %d: the reservation %s of %s is %q", view.Revision(), key, owner(holders[0]),
				item.Value)
		}
	}
	for address, sharers := range seen.sharers {
		item, _ := view.Get(balancedKey(address))
		r, err := readAddressRecord(item)
		if err != nil {
			return fmt.Errorf("revision %d: %w", view.Revision(), err)
		}
		if len(r.Owners) != len(sharers) {
			return fmt.Errorf("revision %d: %s has %d Services, and a reservation for %v", view.Revision(), address,
				len(sharers), r)
		}
		used := map[string]string{}
		for _, s := range sharers {
			has := texts(balancedOf(s).addresses[address])
			if got := r.Owners[owner(s)]; !slices.Equal(got, has) {
				return fmt.Errorf("revision %d: %s has %v of %s, and %v is reserved", view.Revision(), owner(s), has,
					address, got)
			}
			for _, port := range has {
				if used[port] != "" || len(sharers) > 1 && r.Share == "" {
					return fmt.Errorf("revision %d: %s and %s have the port %s of %s", view.Revision(), used[port],
						owner(s), port, address)
				}
				used[port] = owner(s)
			}
		}
	}
	each(view, balancedPrefix, func(item raftstore.Item) {
		if a, parseErr := netip.ParseAddr(strings.TrimPrefix(item.Key, balancedPrefix)); parseErr != nil ||
			len(seen.sharers[a]) == 0 {
			err = fmt.Errorf("revision %d: the reservation %s of %s has leaked", view.Revision(), item.Key, item.Value)
		}
	})
	for _, prefix := range []string{addressPrefix, portPrefix, takenPrefix} {
		each(view, prefix, func(item raftstore.Item) {
			if len(seen.holders[item.Key]) == 0 {
				err = fmt.Errorf("revision %d: the reservation %s of %s has leaked", view.Revision(), item.Key,
					item.Value)
			}
		})
	}
	shown := 0
	for _, o := range seen.services {
		for address := range holdingsOf(o).addresses {
			shown++
			if ip := seen.addresses[address]; ip == nil || !refersTo(ip, o) || !hasLabels(ip, address) {
				return fmt.Errorf("revision %d: the IPAddress %v of %s is %v", view.Revision(), address, owner(o), ip)
			}
			if !slices.ContainsFunc(seen.cidrs, func(c *serviceCIDR) bool { return c.contains(address) }) {
				return fmt.Errorf("revision %d: the address %v of %s is in no ServiceCIDR", view.Revision(), address,
					owner(o))
			}
		}
	}
	managed := 0
	for _, ip := range seen.addresses {
		if ip.Labels[networkingv1.LabelManagedBy] == managedBy {
			managed++
		}
	}
	if shown != managed {
		return fmt.Errorf("revision %d: %d IPAddresses for %d addresses", view.Revision(), managed, shown)
	}
	return err
}

// wantConsistent checks the newest state.
func (s *server) wantConsistent(t testing.TB) *inventory {
	t.Helper()
	view, err := s.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.check(t.Context(), view); err != nil {
		t.Error(err)
	}
	seen, err := s.inspect(t.Context(), view)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func newCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// deleting is a ServiceCIDR whose deletion has begun.
func deleting(o *networkingv1.ServiceCIDR) {
	now := metav1.Now()
	o.DeletionTimestamp, o.Finalizers = &now, []string{"networking.k8s.io/service-cidr-finalizer"}
}

// silent records no events.
type silent struct{ record.EventRecorder }

func (silent) Event(runtime.Object, string, string, string) {}

var quiet = slog.New(slog.DiscardHandler)
