package clustertest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/internal/needs"
)

var gatewayRequests = flag.Int("gateway-requests", 100_000, "how many requests TestNoRequestFailsUnderChange sends")

// addedRoutes is how many routes each round adds, half of them Ingresses and half HTTPRoutes.
const addedRoutes = 1000

// webHost is asked for all the time, by the Ingress web.
const webHost = "web.example.com"

const gatewayObjects = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: hello
        image: barque.local/hello:1
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 15}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
endpoints: [{addresses: ["%[1]s"], conditions: {ready: true}}]
ports: [{port: %[2]d}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: barque
  tls: [{hosts: [web.example.com], secretName: web}]
  rules:
  - host: web.example.com
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
      - {path: /echo, pathType: Prefix, backend: {service: {name: echo, port: {number: 80}}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: barque
  listeners:
  - name: https
    port: 443
    protocol: HTTPS
    hostname: "*.routes.example.com"
    tls: {certificateRefs: [{name: web}]}
`

// 64 clients send 100,000 requests through the gateway, by TLS, half of them on connections that
// they keep and half on new ones. Meanwhile the backends roll out, the certificate changes, 1,000
// routes are added, a node drains and the leader is killed, in rounds. No request fails, and
// WebSockets stay open.
//
// The clients go to the two agents, at port 443 of these nodes. The gateway is a part of the node's
// process, so no address of a pool leads to it, and a machine that is killed takes its own address
// with it: a client of that one is not judged. Agents never lead, so they are not killed. One of
// them may be the node that drains: that ends its pods, and not its gateway.
func TestNoRequestFailsUnderChange(t *testing.T) {
	needs.AllTests(t)
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 3, Agents: 2, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	certificates := newWebCertificates(t)
	s.renew(certificates)
	s.Apply(fmt.Sprintf(gatewayObjects, s.bridgeAddress(), s.startEcho()))
	s.K("rollout", "status", "deployment/web", "--timeout=5m")
	addresses := []string{net.JoinHostPort(s.InternalIP("a1"), "443"), net.JoinHostPort(s.InternalIP("a2"), "443")}
	for _, address := range addresses {
		Eventually(t, deadline, "the route at "+address, certificates.shown(address, webHost, certificates.serial))
		Eventually(t, deadline, "an answer at "+address, func(ctx context.Context) error {
			v := &newEach{certificates.client(address, webHost)}
			return v.ask(ctx, "/before")
		})
	}
	all := s.startVisitors(certificates, addresses)
	changes := []struct {
		what string
		make func(round int)
	}{
		{"backends roll out", func(int) { s.rollOut() }},
		{"the certificate changes", func(int) { s.changeCertificate(certificates, addresses) }},
		{"routes are added", func(round int) { s.addRoutes(certificates, addresses, round) }},
		{"a node drains", func(int) { s.drainOne(all) }},
		{"the leader is killed", func(int) { s.killLeaderUnder(all) }},
	}
	for round := 1; round == 1 || all.sent.Load() < int64(*gatewayRequests); round++ {
		for _, change := range changes {
			all.during(fmt.Sprintf("round %d, %s", round, change.what))
			change.make(round)
		}
	}
	all.end()
	t.Logf("%d requests and %d messages of WebSockets in %v: %d and %d failed; %s", all.sent.Load(),
		all.messages.Load(), time.Since(all.began).Round(time.Second), all.failed(requestFailed),
		all.failed(socketFailed), all.counts())
}

func (s *Space) rollOut() {
	s.K("rollout", "restart", "deployment/web")
	s.K("rollout", "status", "deployment/web", "--timeout=5m")
}

// changeCertificate replaces the certificate, and waits until both addresses show the new one.
func (s *Space) changeCertificate(certificates *webCertificates, addresses []string) {
	s.renew(certificates)
	for _, address := range addresses {
		Eventually(s, deadline, "the new certificate at "+address,
			certificates.shown(address, webHost, certificates.serial))
	}
}

// renew writes a new certificate into the Secret web.
func (s *Space) renew(certificates *webCertificates) {
	s.Helper()
	chain, key := certificates.next(s)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key},
	}
	Eventually(s, deadline, "writing the certificate", func(ctx context.Context) error {
		secrets := s.Client.CoreV1().Secrets(s.Namespace)
		_, err := secrets.Update(ctx, secret, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		}
		return err
	})
}

// addRoutes adds routes, waits until the last ones work at both addresses, and takes them away.
func (s *Space) addRoutes(certificates *webCertificates, addresses []string, round int) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		s.Fatal(err)
	}
	config.QPS = -1
	gateways, err := gatewayclient.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	routes := gateways.HTTPRoutes(s.Namespace)
	labels := map[string]string{"added-in": fmt.Sprint(round)}
	numbers := make(chan int)
	var making sync.WaitGroup
	failed := make(chan error, addedRoutes)
	const makers = 8
	for range makers {
		making.Go(func() { // ends when numbers is closed
			for n := range numbers {
				err := Poll(s.Context(), deadline, func(ctx context.Context) error {
					meta := metav1.ObjectMeta{Name: fmt.Sprintf("added-%d-%d", round, n), Labels: labels}
					if n%2 == 0 {
						_, err := s.Client.NetworkingV1().Ingresses(s.Namespace).Create(ctx, addedIngress(meta, n),
							metav1.CreateOptions{})
						return exceptExists(err)
					}
					_, err := routes.Create(ctx, addedHTTPRoute(meta, n), metav1.CreateOptions{})
					return exceptExists(err)
				})
				if err != nil {
					failed <- fmt.Errorf("route %d: %w", n, err)
				}
			}
		})
	}
	for n := range addedRoutes {
		numbers <- n
	}
	close(numbers)
	making.Wait()
	close(failed)
	for err := range failed {
		s.Error(err)
	}
	for n := addedRoutes - 2*makers; n < addedRoutes; n++ {
		for _, address := range addresses {
			Eventually(s, deadline, fmt.Sprintf("route %d at %s", n, address), func(ctx context.Context) error {
				v := &newEach{certificates.client(address, addedHost(n))}
				return v.ask(ctx, "/added")
			})
		}
	}
	all := metav1.ListOptions{LabelSelector: fmt.Sprintf("added-in=%d", round)}
	Eventually(s, deadline, "the removal of the routes", func(ctx context.Context) error {
		return errors.Join(
			s.Client.NetworkingV1().Ingresses(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
			routes.DeleteCollection(ctx, metav1.DeleteOptions{}, all))
	})
}

func addedHost(n int) string {
	if n%2 == 0 {
		return fmt.Sprintf("added-%d.example.com", n)
	}
	return fmt.Sprintf("added-%d.routes.example.com", n)
}

func addedIngress(meta metav1.ObjectMeta, n int) *networkingv1.Ingress {
	return &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{
		IngressClassName: ptr.To("barque"),
		TLS:              []networkingv1.IngressTLS{{Hosts: []string{addedHost(n)}, SecretName: "web"}},
		Rules: []networkingv1.IngressRule{{Host: addedHost(n), IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix),
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}},
			}}},
		}}},
	}}
}

func addedHTTPRoute(meta metav1.ObjectMeta, n int) *gatewayv1.HTTPRoute {
	web := gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.
		BackendObjectReference{Name: "web", Port: ptr.To(gatewayv1.PortNumber(80))}}}
	return &gatewayv1.HTTPRoute{ObjectMeta: meta, Spec: gatewayv1.HTTPRouteSpec{
		CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "web"}}},
		Hostnames:       []gatewayv1.Hostname{gatewayv1.Hostname(addedHost(n))},
		Rules:           []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{web}}},
	}}
}

// drainOne drains the node with the most backends, and lets it have pods again.
func (s *Space) drainOne(all *visitors) {
	count := map[string]int{}
	node := ""
	for _, pod := range s.Pods("app=web") {
		count[pod.Spec.NodeName]++
		if count[pod.Spec.NodeName] > count[node] {
			node = pod.Spec.NodeName
		}
	}
	if node == "" {
		s.Fatal("no node has a backend to drain")
	}
	all.also(fmt.Sprintf("%s with %d backends", node, count[node]))
	s.K("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=5m")
	s.K("rollout", "status", "deployment/web", "--timeout=5m")
	for _, pod := range s.Pods("app=web") {
		if pod.Spec.NodeName == node {
			s.Errorf("%s has a backend after it was drained: %s", node, pod.Name)
		}
	}
	s.K("uncordon", node)
}

// killLeaderUnder kills all that is Barque on the leader, waits for the next one and some requests
// more, and starts it again.
func (s *Space) killLeaderUnder(all *visitors) {
	leader := s.Leader(s)
	all.also(leader)
	if err := s.KillNodes(s.Context(), leader); err != nil {
		s.Fatal(err)
	}
	sent := all.sent.Load()
	Eventually(s, deadline, "another leader", func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err == nil && (status.Leader == "" || status.Leader == leader) {
			err = fmt.Errorf("the leader is %q", status.Leader)
		}
		return err
	})
	Eventually(s, deadline, "requests after that", func(context.Context) error {
		if n := all.sent.Load() - sent; n < 1000 {
			return fmt.Errorf("only %d were sent", n)
		}
		return nil
	})
	if err := s.StartNode(s.Context(), leader); err != nil {
		s.Fatal(err)
	}
	s.WaitNode(s, leader, corev1.ConditionTrue, deadline)
}

// bridgeAddress is the address of this machine on the cluster's bridge.
func (s *Space) bridgeAddress() string {
	s.Helper()
	link, err := net.InterfaceByName("bq-" + s.ID)
	if err != nil {
		s.Fatal(err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		s.Fatal(err)
	}
	for _, a := range addresses {
		if network, ok := a.(*net.IPNet); ok && network.IP.To4() != nil {
			return network.IP.String()
		}
	}
	s.Fatalf("the bridge of the cluster has no IPv4 address: %v", addresses)
	return ""
}
