package clustertest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/netspace"
	"github.com/barque/barque/edge/gateway/proxy"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/needs"
)

// flood are connections of one source to one address.
type flood struct {
	namespace, address string
	conns              []net.Conn
	closed             atomic.Int64 // by the server
}

// open opens connections, and has each of them begin to ask for something.
func (f *flood) open(ctx context.Context, clients int, begin func(net.Conn) (net.Conn, error)) error {
	const atOnce = 50
	var mu sync.Mutex
	var opening sync.WaitGroup
	var errs []error
	places := make(chan struct{}, atOnce)
	for range clients {
		places <- struct{}{}
		opening.Go(func() {
			defer func() { <-places }()
			conn, err := netspace.Dial(ctx, f.namespace, "tcp", f.address)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			f.conns = append(f.conns, conn)
			go f.hold(conn, begin) // ends with the connection
		})
	}
	opening.Wait()
	return errors.Join(errs...)
}

// hold keeps a connection until the server or close closes it.
func (f *flood) hold(plain net.Conn, begin func(net.Conn) (net.Conn, error)) {
	defer f.closed.Add(1)
	conn, err := begin(plain)
	if err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
	_ = plain.Close()
}

func (f *flood) close() {
	for _, conn := range f.conns {
		_ = conn.Close()
	}
}

// readySince returns since when each node is Ready, or an error if one is not.
func (s *Space) readySince(ctx context.Context) (map[string]time.Time, error) {
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	since := map[string]time.Time{}
	for i := range list.Items {
		for _, c := range list.Items[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				since[list.Items[i].Name] = c.LastTransitionTime.Time
			}
		}
	}
	if len(since) != len(list.Items) {
		return nil, fmt.Errorf("of %d nodes these are Ready: %v", len(list.Items), since)
	}
	return since, nil
}

// TestAFloodOfOneSource: 3,000 clients of one address hold connections to the only API server, and
// say nothing, or little. kubectl works from another address, and no node misses a heartbeat; that
// of the flood's own address neither, because its kubelet is known.
func TestAFloodOfOneSource(t *testing.T) {
	needs.AllTests(t)
	const clients = 3000
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	strangers := &tls.Config{InsecureSkipVerify: true} // a flood verifies no certificates
	handshake := func(ctx context.Context, plain net.Conn) (*tls.Conn, error) {
		conn := tls.Client(plain, strangers)
		return conn, conn.HandshakeContext(ctx)
	}
	for _, kind := range []struct {
		name  string
		begin func(net.Conn) (net.Conn, error)
	}{
		{"Silent", func(plain net.Conn) (net.Conn, error) { return plain, nil }},
		{"APartOfAHeader", func(plain net.Conn) (net.Conn, error) {
			conn, err := handshake(t.Context(), plain)
			if err == nil {
				_, err = io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: x\r\nX-Long: ")
			}
			return conn, err
		}},
		{"Anonymous", func(plain net.Conn) (net.Conn, error) {
			conn, err := handshake(t.Context(), plain)
			if err == nil {
				_, err = io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
			}
			return conn, err
		}},
	} {
		s.Run(kind.name, func(s *Space) {
			var before map[string]time.Time
			Eventually(s, await.Hang, "the nodes are Ready", func(ctx context.Context) (err error) {
				before, err = s.readySince(ctx)
				return err
			})
			f := &flood{namespace: c.Netns("a1"), address: net.JoinHostPort(c.address(t, "s1"), apiPort)}
			defer f.close()
			if err := f.open(s.Context(), clients, kind.begin); err != nil {
				s.Fatal(err)
			}
			Eventually(s, await.Hang, "the server keeps no more of one source than it may",
				func(context.Context) error {
					if open := clients - int(f.closed.Load()); open > connlimit.DefaultPerSource {
						return fmt.Errorf("%d connections are open", open)
					}
					return nil
				})
			if open := clients - int(f.closed.Load()); open == 0 {
				s.Error("the flood holds nothing")
			}
			renewed := time.Now()
			name := "flooded-" + map[string]string{"Silent": "a", "APartOfAHeader": "b", "Anonymous": "c"}[kind.name]
			s.podOn("a1", name)
			s.K("logs", name)
			for _, node := range []string{"s1", "a1"} {
				Eventually(s, await.Hang, node+" renews its lease", func(ctx context.Context) error {
					lease, err := s.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node,
						metav1.GetOptions{})
					if err != nil {
						return err
					}
					if lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(renewed) {
						return fmt.Errorf("it was renewed at %v", lease.Spec.RenewTime)
					}
					return nil
				})
			}
			after, err := s.readySince(s.Context())
			if err != nil {
				s.Fatal(err)
			}
			for node, since := range before {
				if !after[node].Equal(since) {
					s.Errorf("%s was not Ready in between: Ready since %v, and before since %v", node, after[node],
						since)
				}
			}
		})
	}
	s.Run("Gateway", func(s *Space) { s.floodGateway(c, clients) })
}

// floodGateway: the gateway's port keeps no more of one source than it may, and answers another
// one.
func (s *Space) floodGateway(c *Cluster, clients int) {
	class, prefix := "barque", networkingv1.PathTypePrefix
	backend := networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "none", Port: networkingv1.ServiceBackendPort{Number: 80}}}
	_, err := s.Client.NetworkingV1().Ingresses(s.Namespace).Create(s.Context(), &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "flooded"},
		Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{
			Host: "flooded.example.com",
			IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: backend}},
			}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	address := net.JoinHostPort(s.InternalIP("s1"), "80")
	answers := func(ctx context.Context) error {
		conn, err := netspace.Dial(ctx, c.Netns("s1"), "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: flooded.example.com\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	Eventually(s, await.Hang, "the gateway answers", answers)
	f := &flood{namespace: c.Netns("a1"), address: address}
	defer f.close()
	partOfAHeader := func(plain net.Conn) (net.Conn, error) {
		_, err := io.WriteString(plain, "GET / HTTP/1.1\r\nHost: flooded.example.com\r\nX-Long: ")
		return plain, err
	}
	if err := f.open(s.Context(), clients, partOfAHeader); err != nil {
		s.Fatal(err)
	}
	Eventually(s, await.Hang, "the gateway keeps no more of one source than it may", func(context.Context) error {
		if open := clients - int(f.closed.Load()); open > proxy.MaxOfSource {
			return fmt.Errorf("%d connections are open", open)
		}
		return nil
	})
	if err := answers(s.Context()); err != nil {
		s.Errorf("another source, beside the flood: %v", err)
	}
}
