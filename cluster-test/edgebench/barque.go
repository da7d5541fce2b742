package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/cluster-test/kubeapiserver"
)

const (
	namespace = "edge"
	// barquePort is where the gateway serves HTTPS.
	barquePort = 443
)

// barque makes routes as users do, by the API. Half of them are Ingresses, and half HTTPRoutes.
type barque struct {
	site     *site
	client   kubernetes.Interface
	gateways gatewayclient.GatewayV1Interface
	made     int // routes
}

// newBarque makes all that routes need.
func newBarque(ctx context.Context, s *site) (*barque, error) {
	b := &barque{site: s}
	var err error
	if b.client, err = kubernetes.NewForConfig(s.config); err != nil {
		return nil, err
	}
	if b.gateways, err = gatewayclient.NewForConfig(s.config); err != nil {
		return nil, err
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }
	core, none := b.client.CoreV1(), metav1.CreateOptions{}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta("backend"), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{s.backendIP().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(backendPort))}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "backend"}
	terminate := gatewayv1.TLSModeTerminate
	gateway := &gatewayv1.Gateway{ObjectMeta: meta("edge"), Spec: gatewayv1.GatewaySpec{
		GatewayClassName: "barque",
		Listeners: []gatewayv1.Listener{{
			Name: "https", Port: barquePort, Protocol: gatewayv1.HTTPSProtocolType,
			Hostname: ptr.To(gatewayv1.Hostname("*." + domain)),
			TLS: &gatewayv1.ListenerTLSConfig{Mode: &terminate,
				CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "edge"}}},
		}},
	}}
	for what, create := range map[string]func() error{
		"Secret": func() error {
			_, err := core.Secrets(namespace).Create(ctx, &corev1.Secret{
				ObjectMeta: meta("edge"), Type: corev1.SecretTypeTLS, Data: map[string][]byte{
					corev1.TLSCertKey: s.read(s.chain()), corev1.TLSPrivateKeyKey: s.read(s.key())}}, none)
			return err
		},
		"Service": func() error {
			_, err := core.Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: meta("backend"),
				Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, none)
			return err
		},
		"EndpointSlice": func() error {
			_, err := b.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, none)
			return err
		},
		"Gateway": func() error {
			_, err := b.gateways.Gateways(namespace).Create(ctx, gateway, none)
			return err
		},
	} {
		err := kubeapiserver.Retry(ctx, nil, func() error {
			space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
			if _, err := core.Namespaces().Create(ctx, space, none); except(err) != nil {
				return err
			}
			return except(create()) // the Gateway's definition comes a moment after the start
		})
		if err != nil {
			return nil, fmt.Errorf("create the %s: %w", what, err)
		}
	}
	return b, nil
}

// except is the error of a creation, except that the object exists.
func except(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// grow makes routes until there are so many, and waits until the last one works and all statuses
// are written.
func (b *barque) grow(ctx context.Context, to int) error {
	numbers, failed := make(chan int), make(chan error, to)
	var making sync.WaitGroup
	for range 16 {
		making.Go(func() { // ends when numbers is closed
			for n := range numbers {
				if err := b.create(ctx, n); err != nil {
					failed <- fmt.Errorf("route %d: %w", n, err)
				}
			}
		})
	}
	for ; b.made < to; b.made++ {
		numbers <- b.made
	}
	close(numbers)
	making.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	if _, err := b.site.works(ctx, b.site.at(barquePort), hostOf(to-1)); err != nil {
		return err
	}
	return kubeapiserver.Retry(ctx, nil, func() error { return b.settled(ctx) })
}

// create makes one route. Even numbers are Ingresses.
func (b *barque) create(ctx context.Context, n int) error {
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("route-%d", n), Namespace: namespace}
	if n%2 == 0 {
		_, err := b.client.NetworkingV1().Ingresses(namespace).Create(ctx, ingress(meta, hostOf(n)),
			metav1.CreateOptions{})
		return err
	}
	_, err := b.gateways.HTTPRoutes(namespace).Create(ctx, httpRoute(meta, hostOf(n)), metav1.CreateOptions{})
	return err
}

// settled is an error while routes have no status: the leader works on them.
func (b *barque) settled(ctx context.Context) error {
	ingresses, err := b.client.NetworkingV1().Ingresses(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	routes, err := b.gateways.HTTPRoutes(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	without := 0
	for _, in := range ingresses.Items {
		if len(in.Status.LoadBalancer.Ingress) == 0 {
			without++
		}
	}
	for _, r := range routes.Items {
		if len(r.Status.Parents) == 0 {
			without++
		}
	}
	if without == 0 {
		return nil
	}
	select { // each look reads all routes
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
	return fmt.Errorf("%d routes of %d have no status", without, len(ingresses.Items)+len(routes.Items))
}

func ingress(meta metav1.ObjectMeta, host string) *networkingv1.Ingress {
	return &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{
		IngressClassName: ptr.To("barque"),
		TLS:              []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: "edge"}},
		Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix),
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: "backend", Port: networkingv1.ServiceBackendPort{Number: 80}}},
			}}},
		}}},
	}}
}

func httpRoute(meta metav1.ObjectMeta, host string) *gatewayv1.HTTPRoute {
	to := gatewayv1.BackendObjectReference{Name: "backend", Port: ptr.To(gatewayv1.PortNumber(80))}
	return &gatewayv1.HTTPRoute{ObjectMeta: meta, Spec: gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "edge"}}},
		Hostnames:       []gatewayv1.Hostname{gatewayv1.Hostname(host)},
		Rules: []gatewayv1.HTTPRouteRule{{
			BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: to}}}}},
	}}
}

// works waits until a host is answered by its route, on a new connection each time. It returns how
// long that took.
func (s *site) works(ctx context.Context, address, host string) (time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	l := &load{to: address, host: host, tls: s.tls(), protocol: http1}
	for {
		c, err := l.connect(ctx)
		if err == nil {
			err = c.exchange()
			c.close()
		}
		if err == nil {
			return time.Since(began), nil
		}
		if ctx.Err() != nil {
			return 0, errors.Join(fmt.Errorf("the route of %s does not work: %w", host, err), ctx.Err())
		}
	}
}
