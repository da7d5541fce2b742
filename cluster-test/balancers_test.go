package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Services of type LoadBalancer, as users meet them on bare machines. The first one gets the nodes'
// addresses at once. With a pool each gets an address of its own, also while the leader is killed.
func TestLoadBalancers(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 3, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	s.K("create", "deployment", "web", "--image=barque.local/hello:1")
	s.K("expose", "deployment", "web", "--type=LoadBalancer", "--port=80", "--target-port=8080")
	s.Run("nodes", checkNodeAddresses)
	s.Run("pools", checkPools)
	s.Run("leader", checkPoolsWithoutLeader)
	s.Run("exhausted", checkExhausted)
}

// ingress returns the addresses of a Service, once there are some.
func (s *Space) ingress(name string) []string {
	s.Helper()
	var ips []string
	Eventually(s, deadline, "the addresses of "+name, func(ctx context.Context) error {
		service, err := s.Client.CoreV1().Services(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ips = nil
		for _, in := range service.Status.LoadBalancer.Ingress {
			ips = append(ips, in.IP)
		}
		if len(ips) == 0 {
			return fmt.Errorf("it is pending: %v", service.Status.Conditions)
		}
		return nil
	})
	return ips
}

// checkNodeAddresses: the Service answers at each node, to a client that is no node. A second
// Service with its port waits, and gets it when the first one has gone.
func checkNodeAddresses(s *Space) {
	ips := s.ingress("web")
	if len(ips) != len(s.Nodes()) {
		s.Errorf("the Service has %v, and the nodes are %v", ips, s.Nodes())
	}
	for _, ip := range ips {
		Eventually(s, deadline, "the Service at "+ip, func(ctx context.Context) error {
			return get(ctx, "http://"+net.JoinHostPort(ip, "80"), "Hello from web-")
		})
	}
	s.K("expose", "deployment", "web", "--name=second", "--type=LoadBalancer", "--port=80", "--target-port=8080")
	s.WaitEvent("second", "SyncLoadBalancerFailed",
		"the port 80/TCP of the nodes is in use by the Service "+s.Namespace+"/web")
	s.K("expose", "deployment", "web", "--name=api", "--type=LoadBalancer", "--port=6443", "--target-port=8080")
	s.WaitEvent("api", "SyncLoadBalancerFailed", "in use by the Kubernetes API")
	s.K("delete", "service", "web", "api")
	if ips := s.ingress("second"); len(ips) != len(s.Nodes()) {
		s.Errorf("the second Service has %v", ips)
	}
}

const pools = `
apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: lan}
spec: {addresses: [198.51.100.0/26]}
---
apiVersion: edge.barque.io/v1
kind: AddressPool
metadata: {name: named}
spec: {addresses: [203.0.113.7/32], autoAssign: false}
`

// checkPools: a Service with the nodes' addresses keeps them; new ones get addresses of pools, and
// share one by a key.
func checkPools(s *Space) {
	s.Apply(pools)
	if r := s.ApplyResult(strings.ReplaceAll(pools, "198.51.100.0/26", "198.51.100.5/26")); r.Error == nil ||
		!strings.Contains(r.Err, "has bits behind its prefix") {
		s.Errorf("a pool that is no network: %s%s", r.Out, r.Err)
	}
	Eventually(s, deadline, "the pools are ready", func(ctx context.Context) error {
		return s.KResult("wait", "--for=condition=Ready", "addresspool/lan", "addresspool/named",
			"--timeout=1s").Error // brief: it is tried again
	})
	shared := func(name string, port int) {
		s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: {barque.io/address-pool: named, barque.io/allow-shared-ip: key}}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: %d, targetPort: 8080}]}
`, name, port))
	}
	shared("http", 80)
	shared("https", 443)
	for _, name := range []string{"http", "https"} {
		if got := s.ingress(name); len(got) != 1 || got[0] != "203.0.113.7" {
			s.Errorf("%s has %v", name, got)
		}
	}
	shared("clash", 443)
	s.WaitEvent("clash", "SyncLoadBalancerFailed", "no IPv4 address is free in the pool named")
	if ips := s.ingress("second"); len(ips) != len(s.Nodes()) {
		s.Errorf("a Service with the nodes' addresses has %v after a pool was made", ips)
	}
	s.K("delete", "service", "http", "https", "clash")
}

// checkPoolsWithoutLeader: 64 Services that are made at once, while the leader is killed, have 64
// addresses in the end, which are all of the pool.
func checkPoolsWithoutLeader(s *Space) {
	var making sync.WaitGroup
	for i := range 64 {
		making.Go(func() {
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("many-", i)},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
					Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
				}}
			Eventually(s, deadline, "creating "+service.Name, func(ctx context.Context) error {
				_, err := s.Client.CoreV1().Services(s.Namespace).Create(ctx, service, metav1.CreateOptions{})
				if err != nil && !strings.Contains(err.Error(), "already exists") { // made, and its answer lost
					return err
				}
				return nil
			})
		})
	}
	leader := s.Leader(s)
	if err := s.KillNodes(s.Context(), leader); err != nil {
		s.Error(err)
	}
	making.Wait()
	Eventually(s, deadline, "64 addresses", func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Services(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		owners, twice := map[string]string{}, error(nil)
		for _, service := range list.Items {
			if !strings.HasPrefix(service.Name, "many-") {
				continue
			}
			for _, in := range service.Status.LoadBalancer.Ingress {
				if owners[in.IP] != "" {
					twice = errors.Join(twice,
						fmt.Errorf("%s is the address of %s and of %s", in.IP, owners[in.IP], service.Name))
				}
				owners[in.IP] = service.Name
			}
		}
		if twice != nil {
			s.Error(twice)
		}
		if len(owners) < 64 {
			return fmt.Errorf("%d Services have addresses", len(owners))
		}
		return nil
	})
	s.Dev(s, "start", leader)
	Eventually(s, deadline, "a whole cluster", s.Healthy)
}

// checkExhausted: a Service waits for an address, and gets one that becomes free.
func checkExhausted(s *Space) {
	s.K("expose", "deployment", "web", "--name=late", "--type=LoadBalancer", "--port=80", "--target-port=8080")
	s.WaitEvent("late", "SyncLoadBalancerFailed", "no IPv4 address is free in the pool lan")
	freed := s.ingress("many-7")
	s.K("delete", "service", "many-7")
	if got := s.ingress("late"); got[0] != freed[0] {
		s.Errorf("it has %v, and %v was free", got, freed)
	}
}
