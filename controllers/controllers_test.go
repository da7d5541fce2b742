package controllers_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	fakemetadata "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/controllers"
	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/runtime"
)

// world is the controllers' environment besides the API: all nodes are alive, and nothing changes.
type world struct{ never chan struct{} }

func (w world) Changed() <-chan struct{} { return w.never }
func (w world) Member(*corev1.Node) bool { return true }

func (w world) Life(string) (nodelifecycle.Life, bool) {
	return nodelifecycle.Life{State: nodelifecycle.Alive}, true
}
func (w world) Confirm(context.Context, *corev1.Node) bool { return true }
func (w world) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("a CA")})
}
func (w world) Servers() []netip.AddrPort {
	return []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443")}
}
func (w world) IsServer(*corev1.Node) (server, known bool) { return false, true }
func (w world) Sign(*x509.Certificate, crypto.PublicKey, time.Time) ([]byte, error) {
	return nil, errors.New("nothing is to be signed")
}
func (w world) ready(ctx context.Context, _ netip.AddrPort) error { return ctx.Err() }

// discovering is the in-memory API with a discovery that knows a resource.
type discovering struct {
	kubernetes.Interface
	known *resources
}

func (d discovering) Discovery() discovery.DiscoveryInterfaces { return d.known }

type resources struct{ *fakediscovery.FakeDiscovery }

func (resources) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true,
			Verbs: metav1.Verbs{"get", "list", "watch", "delete", "deletecollection", "patch"}},
	}}}, nil
}

// elections is the leader election of the test.
type elections chan term

type term struct {
	ctx context.Context
	n   uint64
}

func (e elections) AwaitLeadership(ctx context.Context) (context.Context, uint64, error) {
	select {
	case t := <-e:
		return t.ctx, t.n, nil
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
}

// Every controller of a new leader with synced informers works within a second of the election, in
// each term. None waits for a lease, a period or another controller.
func TestEveryControllerWorksWithinASecondOfTheElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
				Status: corev1.NodeStatus{
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
		w := world{make(chan struct{})}
		routines, err := controllers.New(controllers.Config{
			Informers: c.Informers,
			ClientsOf: func(string) controllers.Clients {
				return controllers.Clients{
					API: func(context.Context) (kubernetes.Interface, error) {
						return discovering{c.Client, &resources{&fakediscovery.FakeDiscovery{Fake: &c.Client.Fake}}},
							nil
					},
					// no request is sent to it
					Config: func(context.Context) *rest.Config { return &rest.Config{Host: "http://127.0.0.1:1"} },
					Metadata: func(context.Context) (metadata.Interface, error) {
						return fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme()), nil
					},
				}
			},
			CA: w, Signer: w, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, Liveness: w,
			Servers: w, ServerReady: w.ready, Roles: w,
			LoadBalancers:   balancer{},
			QuotaEvaluators: func(quotav1.ListerForResourceFunc) []quotav1.Evaluator { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		began := map[string]time.Duration{}
		e := make(elections)
		runner, err := runtime.New(runtime.Config{
			Leadership: e, Routines: routines,
			ClientsFor: func(context.Context) (kubernetes.Interface, error) { return c.Client, nil },
			OnStarted: func(routine string, after time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				began[routine] = after
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(func(ctx context.Context, _ kubernetes.Interface) error { return runner.Run(ctx) })
		time.Sleep(time.Minute) // it follows
		for n := range uint64(2) {
			ctx, lose := context.WithCancelCause(t.Context())
			e <- term{ctx, n + 1}
			time.Sleep(30 * time.Second)
			mu.Lock()
			for _, r := range routines {
				if after, ok := began[r.Name]; !ok || after >= time.Second {
					t.Errorf(
						"term %d: 30 s after the election: %s has begun to work: %v, after %v; want it within a second",
						n+1, r.Name, ok, after)
				}
			}
			if t.Failed() {
				t.Logf("these have: %v", slices.Sorted(maps.Keys(began)))
			}
			clear(began)
			mu.Unlock()
			lose(fmt.Errorf("the end of term %d", n+1))
			synctest.Wait()
		}
	})
}
