package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
	"github.com/barque/barque/raftstore/peer"
)

// byRoot leads to this server as an administrator that knows the company's root only.
func (p *process) byRoot(root *companytest.CA) (*rest.Config, error) {
	config, err := p.config()
	if err != nil {
		return nil, err
	}
	config.CAFile, config.CAData = "", root.Chain()
	return config, nil
}

// connection returns a client with a transport of its own, and a function that closes it.
func connection(config *rest.Config) (kubernetes.Interface, func(), error) {
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{TLSClientConfig: settings, DialContext: config.Dial}
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: wrapped, Timeout: patience})
	return client, transport.CloseIdleConnections, err
}

// intruder tries a certificate at the doors of a server, and reports each one that opens.
type intruder struct {
	t     *testing.T
	p     *process
	index int
}

// tryAll has the names of whoever is powerful at each door.
func (i intruder) tryAll(by string, leaf func(name string, groups []string) tls.Certificate) {
	i.t.Helper()
	if status := i.api(leaf("mallory", []string{"system:masters"})); status != http.StatusUnauthorized {
		i.t.Errorf("%s: an administrator of the company gets %d at the API of %s", by, status, i.p.order.Name)
	}
	server := leaf("s2", []string{join.ServersOrganization})
	if status := i.api(server); status != http.StatusUnauthorized {
		i.t.Errorf("%s: a server of the company gets %d at the API of %s", by, status, i.p.order.Name)
	}
	if status := i.joining(server); status != http.StatusUnauthorized && status != http.StatusForbidden {
		i.t.Errorf("%s: a server of the company gets %d where servers get the CA's key", by, status)
	}
	if err := i.peer(server); !alert(err) {
		i.t.Errorf("%s: a server of the company is not refused at the port of servers: %v", by, err)
	}
}

func (i intruder) tls(cert tls.Certificate, protos ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: protos,
		// whatever CAs the server names
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
}

func (i intruder) http(cert tls.Certificate, method, path, body string, headers ...string) int {
	i.t.Helper()
	transport := &http.Transport{TLSClientConfig: i.tls(cert), DialContext: i.p.space.dial}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(i.t.Context(), method,
		fmt.Sprintf("https://%s:%d%s", addressOf(i.index), i.p.order.APIPort, path), strings.NewReader(body))
	if err != nil {
		i.t.Fatal(err)
	}
	for n := 0; n < len(headers); n += 2 {
		request.Header.Set(headers[n], headers[n+1])
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		i.t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

func (i intruder) api(cert tls.Certificate) int {
	i.t.Helper()
	return i.http(cert, http.MethodGet, "/api/v1/namespaces/kube-system/secrets", "")
}

// named asks for the same, with headers that name an administrator.
func (i intruder) named(cert tls.Certificate) int {
	i.t.Helper()
	return i.http(cert, http.MethodGet, "/api/v1/namespaces/kube-system/secrets", "", "X-Remote-User", "mallory",
		"X-Remote-Group", "system:masters")
}

func (i intruder) joining(cert tls.Certificate) int {
	i.t.Helper()
	return i.http(cert, http.MethodPost, join.Prefix+"shared-key", `{"digest":"x"}`)
}

// peer connects to the port of servers, and returns how that ends: see alert.
func (i intruder) peer(cert tls.Certificate) error {
	i.t.Helper()
	raw, err := i.p.space.dial(i.t.Context(), "tcp", fmt.Sprintf("%s:%d", addressOf(i.index), i.p.order.PeerPort))
	if err != nil {
		i.t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		i.t.Fatal(err)
	}
	conn := tls.Client(raw, i.tls(cert, peer.ProtoStore))
	if err := conn.HandshakeContext(i.t.Context()); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil { // a server that has taken the certificate hangs up
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// alert reports whether the other end has refused the certificate.
func alert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// TestACompanysCA: a cluster begins with an intermediate of a company's root, and moves to another
// one while clients that know the root only go on. Nobody else of the company gets in.
func TestACompanysCA(t *testing.T) {
	root := companytest.NewRoot(t)
	one := root.Intermediate("Cluster CA 2026", func(c *x509.Certificate) { c.NotAfter = time.Now().AddDate(0, 8, 0) })
	two, sibling := root.Intermediate("Cluster CA 2027", nil), root.Intermediate("Office CA", nil)
	first := newOrder(t, 0, "")
	first.CAFile, first.CAKeyFile = one.Files()
	all := startThreeFrom(t, first)
	for _, file := range []string{first.CAFile, first.CAKeyFile} { // they are needed no more
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	checkCompanysCA(t, all, root, one)
	trySiblings(t, all, root, one, sibling)

	old, err := all[0].config()
	if err != nil {
		t.Fatal(err)
	}
	end := loadBy(t, all, root.Chain())
	if err := changeCA(t.Context(), all[1], exchange.Begin, nil); codeOf(err) != http.StatusConflict {
		t.Errorf("a built-in CA, without a word: %v", err)
	}
	if err := changeCA(t.Context(), all[1], exchange.BeginExternal,
		&exchange.Given{Chain: two.Chain(), Key: sibling.KeyPEM()}); codeOf(err) != http.StatusUnprocessableEntity {
		t.Errorf("a CA with another's key: %v", err)
	}
	if err := changeCA(t.Context(), all[1], exchange.BeginExternal,
		&exchange.Given{Chain: two.Chain(), Key: two.KeyPEM()}); err != nil {
		t.Fatal(err)
	}
	want, err := pki.KeyDigest(two.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		until(t, patience, p.order.Name+" has the other CA", func(ctx context.Context) error {
			config, err := p.config()
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			var is exchange.Status
			text, err := client.Discovery().RESTClient().Get().AbsPath(adminapi.CAPath).Do(ctx).Raw()
			if err == nil {
				err = json.Unmarshal(text, &is)
			}
			if err == nil && (is.UnderWay() || is.Issuer != want || !is.External) {
				err = fmt.Errorf("%+v", is)
			}
			return err
		})
	}
	end()
	acted(t, all, "rotation.barque.io/keys", "ca", "s2: keys=ca event=begun generation=2",
		"barque:leader: keys=ca event=distributed generation=3", "barque:leader: keys=ca event=ended generation=4")
	acted(t, all, "members.barque.io/change", "promote", "barque:leader: change=promote server=s2",
		"barque:leader: change=promote server=s3")
	checkCompanysCA(t, all, root, two)
	trySiblings(t, all, root, two, sibling)
	trySiblings(t, all, root, two, one) // which is one of the company's like any other now
	client, err := kubernetes.NewForConfig(old)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a kubeconfig of the CA before: %v", err)
	}

	// The flags stay in the service's file; the files are gone.
	all[0].signal(syscall.SIGTERM)
	<-all[0].ended
	again := all[0].space.startProcess(t, all[0].order)
	until(t, patience, "s1 is ready again, without the files", again.ready)
}

// checkCompanysCA checks what each server sends and keeps, with this CA of the cluster.
func checkCompanysCA(t *testing.T, all []*process, root, ca *companytest.CA) {
	t.Helper()
	for _, p := range all {
		name := p.order.Name
		config, err := p.byRoot(root)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		until(t, patience, name+" serves clients of the root", func(ctx context.Context) error {
			_, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			return err
		})
		kept, err := os.ReadFile(filepath.Join(p.order.DataDir, "pki", "ca.key"))
		if err != nil || !bytes.Equal(kept, ca.KeyPEM()) {
			t.Errorf("%s keeps another key than that of the CA: %v", name, err)
		}
		if info, err := os.Stat(filepath.Join(p.order.DataDir, "pki", "ca.key")); err != nil ||
			info.Mode().Perm() != 0o600 {
			t.Errorf("%s: the mode of the key is %v: %v", name, info.Mode(), err)
		}
		// No CA above the cluster's is among those that the cluster believes.
		record, err := enroll.Load(p.order.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		for block, rest := pem.Decode(record.CA().PEM()); block != nil; block, rest = pem.Decode(rest) {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil || !bytes.Equal(cert.RawSubjectPublicKeyInfo, ca.Cert.RawSubjectPublicKeyInfo) {
				t.Errorf("%s believes %v (%v)", name, cert.Subject, err)
			}
		}
		until(t, patience, "the published CAs", func(ctx context.Context) error {
			given, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication",
				metav1.GetOptions{})
			if err == nil && given.Data["client-ca-file"] != string(record.CA().PEM()) {
				err = errors.New("extension API servers are told of others")
			}
			return err
		})
	}
	ends, err := all[0].metric(t.Context(), "barque_ca_not_after_timestamp_seconds")
	if err != nil || int64(ends) != ca.Cert.NotAfter.Unix() {
		t.Errorf("the CA ends at %v by its metric, want %d: %v", ends, ca.Cert.NotAfter.Unix(), err)
	}
}

// trySiblings tries certificates of the root and of another of its CAs at each server.
func trySiblings(t *testing.T, all []*process, root, ca, sibling *companytest.CA) {
	t.Helper()
	for n, p := range all {
		i := intruder{t, p, n}
		for by, from := range map[string]*companytest.CA{"the root": root, "another CA": sibling} {
			i.tryAll(by, func(name string, groups []string) tls.Certificate {
				return from.Leaf(name, groups, []string{name}, sibling.Cert, ca.Cert, root.Cert)
			})
		}
		// The same tries with the cluster's own CA get in: the doors are the right ones.
		if status := i.api(ca.Leaf("admin", []string{"system:masters"}, nil)); status != http.StatusOK {
			t.Errorf("a certificate of the cluster's CA gets %d", status)
		}
		if err := i.peer(p.leaf(t, pki.Peers, "s2", join.ServersOrganization)); alert(err) {
			t.Errorf("a server's certificate of the CA of servers is refused: %v", err)
		}
		// The company's CA is for clients alone.
		server := ca.Leaf("s2", []string{join.ServersOrganization}, []string{"s2"})
		if err := i.peer(server); !alert(err) {
			t.Errorf("a server of the company's CA is not refused at the port of servers: %v", err)
		}
		if status := i.joining(server); status != http.StatusUnauthorized {
			t.Errorf("a server of the company's CA gets %d where servers get the CA's key", status)
		}
	}
}

// codeOf is the code of an answer that is an error.
func codeOf(err error) int {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return int(status.Status().Code)
}

// changeCA asks a server for a change of the CA.
func changeCA(ctx context.Context, p *process, change exchange.Change, given *exchange.Given) error {
	config, err := p.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	body, err := json.Marshal(given)
	if err != nil {
		return err
	}
	return client.Discovery().RESTClient().Post().AbsPath(adminapi.CAPath).Param("change", string(change)).SetHeader(
		"Content-Type", "application/json").Body(body).Do(ctx).Error()
}

// loadBy reads and writes at all servers, with these CAs, PEM, and a token alone, until end.
// All requests must succeed. Certificates of clients are renewed meanwhile, and tokens stay.
func loadBy(t *testing.T, all []*process, cas []byte) (end func()) {
	t.Helper()
	bearer := tokenOfAdmin(t, all)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var done atomic.Int64
	for _, p := range all {
		config := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", p.order.APIPort), BearerToken: bearer, QPS: -1,
			Timeout: time.Minute, Dial: p.space.dial,
			TLSClientConfig: rest.TLSClientConfig{CAData: cas}}
		until(t, patience, p.order.Name+" knows the account's rights",
			func(ctx context.Context) error { return writeAndRead(ctx, config, p.order.Name, -1) })
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				err := writeAndRead(ctx, config, p.order.Name, n)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					t.Errorf("a request to %s during the exchange: %v", p.order.Name, err)
				default:
					done.Add(1)
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
		if done.Load() < 10 {
			t.Errorf("%d requests succeeded, which tests nothing", done.Load())
		}
	}
}

// tokenOfAdmin returns the token of a service account that may do everything, at each server.
func tokenOfAdmin(t *testing.T, all []*process) string {
	t.Helper()
	client := all[0].client()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "load", Namespace: "default"}}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), account,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "load"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "load", Namespace: "default"}}}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "load",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all { // each learns of the binding by itself
		until(t, patience, "the account's rights at "+p.order.Name, func(ctx context.Context) error {
			review := &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:default:load",
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Resource: "configmaps",
						Namespace: "default"}}}
			is, err := p.client().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err == nil && !is.Status.Allowed {
				err = errors.New(is.Status.Reason)
			}
			return err
		})
	}
	return made.Status.Token
}

// writeAndRead writes and reads an object over a connection of its own, which verifies the server.
func writeAndRead(ctx context.Context, config *rest.Config, name string, n int) error {
	client, hangUp, err := connection(config)
	if err != nil {
		return err
	}
	defer hangUp()
	maps := client.CoreV1().ConfigMaps("default")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
		Data: map[string]string{"n": fmt.Sprint(n)}}
	made, err := maps.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = maps.Get(ctx, made.Name, metav1.GetOptions{})
	return err
}

// TestAServerWithoutItsDisk: the first server loses its disk, and its unit has the flags of the
// beginning yet. It begins another cluster with the same CA, which the others do not take for their
// member: they go on without it, and give clients no way to it.
func TestAServerWithoutItsDisk(t *testing.T) {
	root := companytest.NewRoot(t)
	first := newOrder(t, 0, "")
	first.CAFile, first.CAKeyFile = root.Intermediate("Cluster CA", nil).Files()
	all := startThreeFrom(t, first)
	ways := func(ctx context.Context) (out []string, err error) {
		slices, err := all[1].client().DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx,
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
		if err != nil {
			return nil, err
		}
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				out = append(out, e.Addresses...)
			}
		}
		return out, nil
	}
	awaitWays := func(what string, want int) {
		t.Helper()
		until(t, patience, what, func(ctx context.Context) error {
			is, err := ways(ctx)
			if err == nil &&
				(len(is) != want || want == 2 && strings.Contains(strings.Join(is, " ")+" ", addressOf(0)+" ")) {
				err = fmt.Errorf("they are %q", is)
			}
			return err
		})
	}
	awaitWays("ways to all three servers", 3)
	all[0].signal(syscall.SIGKILL)
	<-all[0].ended
	awaitWays("ways to the two that are left", 2)
	if err := os.RemoveAll(first.DataDir); err != nil {
		t.Fatal(err)
	}
	twin := all[0].space.startProcess(t, first)
	until(t, patience, "another cluster has begun", twin.ready)
	// A probe as of the leader, with the CAs of a server, whose certificate is not asked for.
	record, err := enroll.Load(all[1].order.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := pki.NewTrust(record.CA())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process{all[1], twin} {
		conn, err := p.space.dial(t.Context(), "tcp", fmt.Sprintf("%s:%d", p.order.NodeIPs[0], p.order.APIPort))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := tls.Client(conn,
			&tls.Config{RootCAs: trust.Pool(), ServerName: p.order.NodeIPs[0],
				VerifyConnection: join.IsServerOf(trust)})
		if err := client.HandshakeContext(t.Context()); p == twin && !errors.Is(err, pki.ErrOtherCluster) ||
			p != twin && err != nil {
			t.Errorf("a node of the cluster asks %s: %v", p.order.Name, err)
		}
	}
	// The leader looks twice a second. The next one looks anew, and finds the same.
	if is, err := ways(t.Context()); err != nil || len(is) != 2 {
		t.Errorf("with the other cluster at the address of s1, ways lead to %q (%v)", is, err)
	}
	for _, p := range all[1:] {
		p.signal(syscall.SIGTERM)
		<-p.ended
	}
	for i := range all[1:] {
		all[1+i] = twin.space.startProcess(t, all[1+i].order)
	}
	for _, p := range all[1:] {
		until(t, patience, p.order.Name+" is ready again", p.ready)
	}
	awaitWays("ways to the two, as a new leader finds them", 2)
}
