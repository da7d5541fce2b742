package clustertest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// certificateLife is so short that everything is renewed several times while the test runs, and
// long enough for a busy machine to do so in time.
const certificateLife = time.Minute

// In a cluster whose certificates last a minute, an agent is off until all of its own have ended,
// and comes back; the servers' are renewed meanwhile. In the end the CA is exchanged, with the key
// of service accounts, and then this key alone. Clients of the API notice nothing, and pods run on.
func TestCertificates(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t,
		Options{Servers: 3, Agents: 1, Registry: images,
			ServerArgs: []string{"--certificate-lifetime=" + certificateLife.String()}})
	c.useServersKubeconfig(t)
	s := NewSpace(t, c)
	s.Apply(hello("spread", 2, "none"))
	s.K("rollout", "status", "deployment/spread", "--timeout=2m")
	before := s.containers("app=spread")
	server, agent := net.JoinHostPort(c.address(t, "s1"), "6443"), net.JoinHostPort(c.address(t, "a1"), "10250")
	user := c.serviceAccountUser(t, server, s.Namespace)
	traffic := startTraffic(t, user, s.Namespace)

	c.Dev(t, "kill", "a1")
	api, node := shownAt(t, server), agentCertificate(t, c.DataDir("a1"))
	Eventually(t, certificateLife+30*time.Second, "the server has another certificate, and that of the agent has ended",
		func(context.Context) error {
			if time.Now().Before(node.NotAfter) {
				return errors.New("the agent's has not ended")
			}
			if shownAt(t, server) == api {
				return errors.New("the server has the same")
			}
			return nil
		})
	c.useServersKubeconfig(t)
	c.Dev(t, "start", "a1")
	Eventually(t, deadline, "the agent is back, with another certificate", func(ctx context.Context) error {
		if err := c.Healthy(ctx); err != nil {
			return err
		}
		if serial := shownAt(t, agent); serial == node.SerialNumber.String() {
			return errors.New("it shows the one that has ended")
		}
		return nil
	})

	ca, key := c.caOf(t, s.Namespace, ""), tokenKey(t, s)
	if out := c.Barque(t, "cert", "rotate", "--ca", "--yes"); !contains(out, "the CA is exchanged") {
		t.Errorf("cert rotate --ca says %q", out)
	}
	c.useServersKubeconfig(t)
	c.caOf(t, s.Namespace, ca)
	if now := tokenKey(t, s); now == key {
		t.Errorf("tokens of service accounts are signed with the key of before, %s", now)
	}
	ca, key = c.caOf(t, s.Namespace, ""), tokenKey(t, s)
	if out := c.Barque(t, "cert", "rotate", "--service-accounts", "--yes"); !contains(out,
		"the key of service accounts is exchanged") {
		t.Errorf("cert rotate --service-accounts says %q", out)
	}
	if now := tokenKey(t, s); now == key {
		t.Errorf("tokens of service accounts are signed with the key of before, %s", now)
	}
	if now := c.caOf(t, s.Namespace, ""); now != ca {
		t.Error("the CA was exchanged with the key of service accounts")
	}
	if out := c.Barque(t, "cert", "rotate", "--server", "s1"); !contains(out, "s1 has new certificates") {
		t.Errorf("cert rotate says %q", out)
	}
	traffic.check()
	if after := s.containers("app=spread"); after != before {
		t.Errorf("pods did not run on: %s, before %s", after, before)
	}
	for _, p := range s.Pods("app=spread") {
		s.K("logs", p.Name) // the API server calls the kubelets of both nodes
	}
	Eventually(t, deadline, "all certificates are of the new CA",
		func(ctx context.Context) error { return c.oneCA(ctx, 7) })
}

// oneCA checks that `cert show` knows one CA for each purpose, and that all nodes have certificates
// of these and have heard of their generation.
func (c *Cluster) oneCA(ctx context.Context, generation uint64) error {
	var all struct {
		Warnings []string
		Nodes    []struct {
			Node         string
			Generation   uint64
			Certificates []struct{ Name, Issuer string }
		}
		CAs []struct{ Name, Subject string }
	}
	r := c.BarqueResult(ctx, "cert", "show", "-o", "json")
	if r.Error != nil {
		return r.Error
	}
	if err := json.Unmarshal([]byte(r.Out), &all); err != nil {
		return err
	}
	issuers := map[string]string{} // by the certificate's name
	for _, ca := range all.CAs {
		issuers[map[string]string{"peers-ca": "peer", "front-proxy-ca": "front-proxy"}[ca.Name]] = ca.Subject
	}
	if len(all.CAs) != 3 || len(issuers) != 3 || len(all.Nodes) != len(c.nodes) || len(all.Warnings) != 0 {
		return fmt.Errorf("cert show: %+v", all)
	}
	for _, n := range all.Nodes {
		names := ""
		for _, cert := range n.Certificates {
			names += cert.Name + " "
		}
		if want := map[bool]string{true: "api-client kubelet gossip ", false: "kubelet"}[strings.HasPrefix(n.Node,
			"a")]; !strings.Contains(names, want) {
			return fmt.Errorf("%s shows the certificates %s", n.Node, names)
		}
		for _, cert := range n.Certificates {
			want, own := issuers[cert.Name]
			if !own {
				want = issuers[""]
			}
			if cert.Issuer != want || n.Generation != generation {
				return fmt.Errorf("%s: the certificate %s is of %s, generation %d", n.Node, cert.Name, cert.Issuer,
					n.Generation)
			}
		}
	}
	return nil
}

// tokenKey is the ID of the key that signs tokens of service accounts.
func tokenKey(t *testing.T, s *Space) string {
	t.Helper()
	header, _, _ := strings.Cut(s.K("create", "token", "default"), ".")
	data, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(header))
	if err != nil {
		t.Fatal(err)
	}
	var h struct{ Kid string }
	if err := json.Unmarshal(data, &h); err != nil || h.Kid == "" {
		t.Fatalf("the header of a token: %s, %v", data, err)
	}
	return h.Kid
}

// agentCertificate is the one that an agent has on disk for its kubelet.
func agentCertificate(t *testing.T, dataDir string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dataDir, "pki", "node-serving.crt"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// useServersKubeconfig makes the cluster's kubeconfig that of the server again, which keeps its own
// good.
func (c *Cluster) useServersKubeconfig(t *testing.T) {
	t.Helper()
	c.Dev(t, "up", "--name", c.ID)
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
}

// caOf waits for the CA that pods of a namespace are given, until it is another one than that.
func (c *Cluster) caOf(t *testing.T, namespace, other string) (ca string) {
	t.Helper()
	Eventually(t, deadline, "pods are given a CA", func(ctx context.Context) error {
		cm, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ca = cm.Data["ca.crt"]; ca == other || strings.Count(ca, "BEGIN") != 1 {
			return fmt.Errorf("they are given\n%s", ca)
		}
		return nil
	})
	return ca
}

// shownAt is the serial number of the certificate that is shown at the address.
func shownAt(t *testing.T, address string) string {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// serviceAccountUser is a client of one server with a token and the CA of now, as a pod has them.
// It does not go by the address of all, where connections are cut when a server is late, as it may
// be on a machine that others use, too.
func (c *Cluster) serviceAccountUser(t *testing.T, server, namespace string) kubernetes.Interface {
	t.Helper()
	ctx := t.Context()
	_, err := c.Client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "traffic"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: namespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(
		&rest.Config{Host: "https://" + server, BearerToken: token.Status.Token, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// traffic writes to one object all the time and watches it. No write may be refused, nor any
// connection, and the watch sees each write. A busy machine may cause elections: a write whose
// outcome is lost in one is counted.
type traffic struct {
	t       *testing.T
	stop    context.CancelFunc
	running sync.WaitGroup
	written atomic.Int64
	seen    atomic.Int64
	lost    atomic.Int64
}

func startTraffic(t *testing.T, client kubernetes.Interface, namespace string) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &traffic{t: t, stop: cancel}
	t.Cleanup(func() { cancel(); f.running.Wait() })
	configs := client.CoreV1().ConfigMaps(namespace)
	object, err := configs.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "traffic"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := configs.Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=traffic", ResourceVersion: object.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	f.running.Go(func() {
		for range watcher.ResultChan() { // one watch for the whole time; it ends with ctx
			f.seen.Add(1)
		}
		if ctx.Err() == nil {
			t.Error("the watch was cut")
		}
	})
	f.running.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := int64(1); ; n++ {
			select {
			case <-ctx.Done():
				watcher.Stop()
				return
			case <-tick.C:
			}
			object.Data = map[string]string{"n": fmt.Sprint(n)}
			next, err := configs.Update(ctx, object, metav1.UpdateOptions{})
			switch {
			case err == nil:
				object = next
				f.written.Add(1)
			case ctx.Err() != nil:
			// its outcome is unknown, or that of the one before was
			case apierrors.IsTimeout(err), apierrors.IsConflict(err):
				t.Logf("write %d: %v", n, err)
				f.lost.Add(1)
				if now, err := configs.Get(ctx, object.Name, metav1.GetOptions{}); err == nil {
					object = now
				} else if ctx.Err() == nil && !apierrors.IsTimeout(err) {
					t.Errorf("a read after write %d: %v", n, err)
				}
			default:
				t.Errorf("write %d: %v", n, err)
			}
		}
	})
	return f
}

// check ends the traffic, when the watch has seen all of it.
func (f *traffic) check() {
	f.t.Helper()
	f.t.Logf("%d writes, %d seen, the outcome of %d lost", f.written.Load(), f.seen.Load(), f.lost.Load())
	want := f.written.Load()
	Eventually(f.t, deadline, "the watch sees every write", func(context.Context) error {
		if seen := f.seen.Load(); seen < want {
			return fmt.Errorf("%d of %d", seen, want)
		}
		return nil
	})
	if lost := f.lost.Load(); want < 100 || lost > want/20 {
		f.t.Errorf("only %d writes, and the outcome of %d lost", want, lost)
	}
	f.stop()
	f.running.Wait()
}
