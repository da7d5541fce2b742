package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayfake "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/fake"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"
	"sigs.k8s.io/yaml"
)

// rig is an API with the informers of the gateway.
type rig struct {
	t        *testing.T
	client   *fake.Clientset
	api      *gatewayfake.Clientset
	gateways gatewayclient.GatewayV1Interface
	shared   informers.SharedInformerFactory
	objects  *Objects
}

// plainWatch says that this API lists first and watches then.
type plainWatch struct {
	gatewayclient.GatewayV1Interface
}

// IsWatchListSemanticsUnSupported is asked by reflectors.
func (plainWatch) IsWatchListSemanticsUnSupported() bool { return true }

// newRig returns an API with these objects, which the informers have after start.
func newRig(t *testing.T, objects ...runtime.Object) *rig {
	t.Helper()
	r := &rig{t: t, client: fake.NewClientset(), api: gatewayfake.NewSimpleClientset()}
	r.gateways = plainWatch{r.api.GatewayV1()}
	r.shared = informers.NewSharedInformerFactory(r.client, 0)
	core := r.shared.Core().V1()
	var err error
	r.objects, err = newObjects(r.client, r.gateways, Shared{
		Services: core.Services(), EndpointSlices: r.shared.Discovery().V1().EndpointSlices(),
		Namespaces: core.Namespaces(),
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	core.Nodes().Informer()
	for _, o := range append([]runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		read[gatewayv1.GatewayClass](t, "metadata: {name: barque}\nspec: {controllerName: barque.io/gateway}"),
		read[networkingv1.IngressClass](t, "metadata: {name: barque}\nspec: {controller: barque.io/ingress}"),
	}, objects...) {
		r.add(o)
	}
	return r
}

// add creates an object.
func (r *rig) add(o runtime.Object) {
	r.t.Helper()
	var err error
	ctx, opts := r.t.Context(), metav1.CreateOptions{}
	switch o := o.(type) {
	case *gatewayv1.GatewayClass:
		_, err = r.gateways.GatewayClasses().Create(ctx, o, opts)
	case *gatewayv1.Gateway: // the tracker guesses another name of the resource
		_, err = r.gateways.Gateways(o.Namespace).Create(ctx, o, opts)
	case *gatewayv1.ListenerSet:
		_, err = r.gateways.ListenerSets(o.Namespace).Create(ctx, o, opts)
	case *gatewayv1.HTTPRoute:
		_, err = r.gateways.HTTPRoutes(o.Namespace).Create(ctx, o, opts)
	case *gatewayv1.TLSRoute:
		_, err = r.gateways.TLSRoutes(o.Namespace).Create(ctx, o, opts)
	case *gatewayv1.BackendTLSPolicy:
		_, err = r.gateways.BackendTLSPolicies(o.Namespace).Create(ctx, o, opts)
	default:
		err = r.client.Tracker().Add(o)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// start runs the informers until the test ends, and waits until they have all objects.
func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	r.shared.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- r.objects.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
		r.shared.Shutdown()
	})
	r.shared.WaitForCacheSync(ctx.Done())
	if !r.objects.waitForSync(ctx) {
		r.t.Fatal("the informers have no objects")
	}
	for _, i := range r.objects.api() {
		if !i.HasSynced() {
			r.t.Fatal("an informer of the Gateway API has no objects")
		}
	}
}

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	of := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), of); err != nil {
		t.Fatal(err)
	}
	return of
}

// selfSigned returns a self-signed certificate of a name with its key, as PEM.
func selfSigned(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("CERTIFICATE", der), pemOf("PRIVATE KEY", pkcs)
}

func pemOf(kind string, content []byte) []byte {
	var b bytes.Buffer
	_ = pem.Encode(&b, &pem.Block{Type: kind, Bytes: content}) // of a buffer
	return b.Bytes()
}

// reasons are conditions as TYPE=STATUS/REASON.
func reasons(all []metav1.Condition) string {
	var text []string
	for _, c := range all {
		text = append(text, c.Type+"="+string(c.Status)+"/"+c.Reason)
	}
	return strings.Join(text, " ")
}
