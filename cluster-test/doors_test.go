package clustertest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
	"github.com/barque/barque/raftstore/rpc"
)

// The matrix of doors and credentials: every port is tried with every certificate. The access of
// each is in the table of docs/security.md, which the test reads: a row is a credential, a column a
// door. A new one is added to the table, and to credentials or doors below.

// doorsPage has the table, below the heading.
const (
	doorsPage    = "../docs/security.md"
	doorsHeading = "| certificate |"
)

// Answers of doors.
const (
	yes     = "yes"     // it gets all of it
	no      = "no"      // it is known, and refused
	unknown = "unknown" // it counts as no credential at all
)

// building is a cluster whose doors are tried.
type building struct {
	*Space
	t       *testing.T
	ca      *pki.Authority // for clients
	cas     map[pki.Purpose]*pki.Authority
	cluster string            // ID
	at      map[string]string // addresses of nodes
	// proxies are certificates with which requests name an administrator in their headers.
	proxies map[*tls.Certificate]bool
	// tokens are the bearer tokens of credentials that have no certificate.
	tokens map[*tls.Certificate]string
}

// doors are the columns of the table.
var doors = map[string]func(b *building, cert *tls.Certificate) (string, error){
	"API: Secrets": func(b *building, cert *tls.Certificate) (string, error) {
		return b.get(b.at["s1"]+":6443", "/api/v1/secrets", cert)
	},
	"API: Nodes": func(b *building, cert *tls.Certificate) (string, error) {
		return b.get(b.at["s1"]+":6443", "/api/v1/nodes", cert)
	},
	"keys of gossip": func(b *building, cert *tls.Certificate) (string, error) {
		return b.join(cert, func(ctx context.Context, c *join.Client) error {
			_, err := c.GossipKeys(ctx, "")
			return err
		})
	},
	"the CA's key": func(b *building, cert *tls.Certificate) (string, error) {
		return b.join(cert, func(ctx context.Context, c *join.Client) error {
			_, err := c.SharedKey(ctx, b.ca.Digest())
			return err
		})
	},
	"Raft": func(b *building, cert *tls.Certificate) (string, error) {
		conn, answer, err := b.peer(cert, "barque-raft/3")
		if conn != nil {
			conn.Close()
		}
		return answer, err
	},
	"store": func(b *building, cert *tls.Certificate) (string, error) {
		_, answer, err := b.ask(cert, 3, nil) // its status
		return answer, err
	},
	"kubelet": func(b *building, cert *tls.Certificate) (string, error) {
		return b.get(b.at["a1"]+":10250", "/pods", cert)
	},
	"the server's kubelet": func(b *building, cert *tls.Certificate) (string, error) {
		return b.get(b.at["s1"]+":10250", "/pods", cert)
	},
	"state of keys": func(b *building, cert *tls.Certificate) (string, error) {
		return b.get(b.at["s1"]+":6443", "/barque/v1/keys", cert)
	},
	"join tokens": func(b *building, cert *tls.Certificate) (string, error) {
		return b.get(b.at["s1"]+":6443", "/barque/v1/tokens", cert)
	},
	"gossip":    (*building).gossip,
	"addresses": (*building).addresses,
}

// credentials are the rows of the table. Those that only a server's memory has are made with the
// keys of the CAs.
func (b *building) credentials() map[string]*tls.Certificate {
	server := func(name string) pki.Request {
		return pki.Request{CommonName: name, Organization: []string{join.ServersOrganization},
			Usage: pki.Client | pki.Server, Holder: b.idOf(name)}
	}
	client := func(cn string, holder string, groups ...string) *tls.Certificate {
		return b.issue(pki.Request{CommonName: cn, Organization: groups, Usage: pki.Client, Holder: holder})
	}
	proxy := func(holder string) *tls.Certificate {
		return b.issueFor(pki.FrontProxy,
			pki.Request{CommonName: "barque:front-proxy", Usage: pki.Client, Holder: holder})
	}
	masters := pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client}
	selfSigned, err := pki.NewAuthority("stranger", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	all := map[string]*tls.Certificate{
		"administrator":                               b.admin(),
		"server":                                      b.issueFor(pki.Peers, server("s1")),
		"removed server":                              b.issueFor(pki.Peers, server("s3")),
		"server, by the CA for clients":               b.issue(server("s1")),
		"front proxy, by the CA for clients":          client("barque:front-proxy", b.idOf("s1")),
		"administrator, by the CA of peers":           b.issueFor(pki.Peers, masters),
		"administrator, by the CA of the front proxy": b.issueFor(pki.FrontProxy, masters),
		"server, to other APIs": client("barque:server-client", b.idOf("s1"),
			"barque:server-clients"),
		"removed server, to other APIs": client("barque:server-client", b.idOf("s3"),
			"barque:server-clients"),
		"server, to kubelets": client("barque:kubelet-client", b.idOf("s1"),
			"barque:kubelet-clients"),
		"removed server, to kubelets": client("barque:kubelet-client", b.idOf("s3"),
			"barque:kubelet-clients"),
		"front proxy, as itself":            proxy(b.idOf("s1")),
		"front proxy, for an administrator": proxy(b.idOf("s1")),
		"front proxy of a removed server":   proxy(b.idOf("s3")),
		"agent":                             b.agentsOwn("a1"),
		"removed agent":                     b.agentsOwn("a2"),
		"user":                              b.user("ann"),
		"revoked user":                      b.user("bob"),
		"of barque:admins":                  b.madeUser("root@laptop", "barque:admins").cert,
		"revoked, of barque:admins":         b.madeUser("mallory", "barque:admins").cert,
		"token of a service account":        {},
		"token by a controller's name":      {},
		"of another CA, an administrator's": b.issueBy(selfSigned,
			pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client}),
		"of another CA, a server's":    b.issueBy(selfSigned, server("s1")),
		"none":                         {},
		"of a user called as a server": client("s1", ""),
		"of a request, for a user called as a server":         b.user("s1"),
		"administrator, ended":                                b.ended(b.ca, masters),
		"server, ended":                                       b.ended(b.cas[pki.Peers], server("s1")),
		"agent, ended":                                        b.ended(b.ca, join.NodeClient("a1")),
		"agent, the certificate that its kubelet serves with": b.kubeletsOwn("a1"),
		"bootstrap token":                                     {},
		"join token of agents":                                {},
	}
	b.tokens = map[*tls.Certificate]string{all["token of a service account"]: b.token("somebody"),
		all["token by a controller's name"]: b.token("deployment-controller"),
		all["bootstrap token"]:              b.bootstrapToken(),
		all["join token of agents"]:         strings.TrimSpace(b.Barque(b, "token", "create", "--role=agent"))}
	b.proxies = map[*tls.Certificate]bool{all["front proxy, for an administrator"]: true,
		all["front proxy of a removed server"]: true, all["front proxy, by the CA for clients"]: true}
	return all
}

// TestDoors tries every door with every certificate.
func TestDoors(t *testing.T) {
	needs.AllTests(t)
	c := Start(t, Options{Servers: 3, Agents: 2})
	b := newBuilding(t, c)
	t.Run("ServersAskEachOther", b.serversAskEachOther)
	table := readDoors(t)
	all := b.credentials()
	if code, err := doors["API: Nodes"](b, all["removed agent"]); code == unknown || err != nil {
		t.Fatalf("before its removal the agent is %s, %v", code, err)
	}
	for _, what := range []string{"Raft", "store"} {
		if answer, err := doors[what](b, all["removed server"]); answer != yes || err != nil {
			t.Fatalf("%s, before its removal: %s, %v", what, answer, err)
		}
	}
	if answer, err := doors["API: Secrets"](b, all["revoked, of barque:admins"]); answer != yes || err != nil {
		t.Fatalf("before the revocation the administrator gets %s, %v", answer, err)
	}
	watch := b.watch(all["removed agent"])
	session := b.holding(all["removed agent"])
	b.remove(all["revoked user"], "mallory")
	if !watch.ended(t) {
		t.Error("the watch of a removed agent goes on")
	}
	if !session.ended(t) {
		t.Error("the session of a removed agent for addresses goes on")
	}
	for door := range table[""] {
		if doors[door] == nil {
			t.Errorf("%s has the door %q, which is none", doorsPage, door)
		}
	}
	for name, cert := range all {
		row, ok := table[name]
		if !ok {
			t.Errorf("%s has no row %q", doorsPage, name)
			continue
		}
		for door, knock := range doors {
			answer, err := knock(b, cert)
			if err != nil {
				t.Errorf("%s with the certificate %q: %v", door, name, err)
			} else if answer != row[door] {
				t.Errorf("%s with the certificate %q: %s, and %s says %q", door, name, answer, doorsPage, row[door])
			}
		}
	}
	t.Run("TokensForJoining", b.tokensForJoining)
	t.Run("PortsInClear", b.portsInClear)
	t.Run("TheRemovedServerLearnsIt", func(t *testing.T) { b.removedServerHears(t, all["removed server"]) })
	t.Run("TheyComeBack", b.comeBack)
}

func newBuilding(t *testing.T, c *Cluster) *building {
	t.Helper()
	b := &building{Space: NewSpace(t, c), t: t, at: map[string]string{}}
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	for _, n := range c.Nodes() {
		b.at[n] = b.InternalIP(n)
	}
	dir := filepath.Join(c.DataDir("s1"), "pki")
	var err error
	if b.ca, err = pki.ParseAuthority(read(t, filepath.Join(dir, "ca.crt")),
		read(t, filepath.Join(dir, "ca.key"))); err != nil {
		t.Fatal(err)
	}
	b.cas = separateCAs(t, c.DataDir("s1"))
	status, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.cluster = status.ID
	return b
}

// separateCAs are the CAs of a server's directory for purposes beside the clients', with their
// keys.
func separateCAs(t *testing.T, dataDir string) map[pki.Purpose]*pki.Authority {
	t.Helper()
	var record struct{ Cluster struct{ CA pki.Bundle } }
	if err := json.Unmarshal(read(t, filepath.Join(dataDir, "node.json")), &record); err != nil {
		t.Fatal(err)
	}
	cas := map[pki.Purpose]*pki.Authority{}
	for purpose, file := range map[pki.Purpose]string{pki.Peers: "peers-ca.key", pki.FrontProxy: "front-proxy-ca.key"} {
		ca, err := pki.ParseAuthority([]byte(record.Cluster.CA.For(purpose)[0]),
			read(t, filepath.Join(dataDir, "pki", file)))
		if err != nil {
			t.Fatalf("%s: %v", purpose, err)
		}
		cas[purpose] = ca
	}
	return cas
}

// readDoors reads the table: the access of each certificate, the first column, at each door. The
// row "" has the doors.
func readDoors(t *testing.T) map[string]map[string]string {
	t.Helper()
	table := map[string]map[string]string{}
	var heads []string
	for line := range strings.Lines(string(read(t, doorsPage))) {
		if heads == nil && !strings.HasPrefix(line, doorsHeading) || heads != nil && strings.HasPrefix(line, "|---") {
			continue
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		name := cells[0]
		if heads == nil {
			heads, name = cells, ""
		}
		row := map[string]string{}
		for i, cell := range cells[1:] {
			row[heads[i+1]] = cell
		}
		table[name] = row
	}
	if len(table) < 2 {
		t.Fatalf("%s has no table %q", doorsPage, doorsHeading)
	}
	return table
}

func (b *building) issue(r pki.Request) *tls.Certificate { return b.issueBy(b.ca, r) }

func (b *building) issueFor(p pki.Purpose, r pki.Request) *tls.Certificate {
	return b.issueBy(b.cas[p], r)
}

func (b *building) issueBy(ca *pki.Authority, r pki.Request) *tls.Certificate {
	b.Helper()
	i, err := identity.New(b.Context(),
		identity.Config{Name: r.CommonName, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
			Issue: pki.TrustOf(ca).Signs(func() pki.Request { return r }, time.Now)})
	if err != nil {
		b.Fatal(err)
	}
	return i.Certificate()
}

// admin is the certificate in the kubeconfig.
func (b *building) admin() *tls.Certificate {
	b.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", b.Kubeconfig())
	if err != nil {
		b.Fatal(err)
	}
	cert, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		b.Fatal(err)
	}
	return &cert
}

// agentsOwn is the certificate on an agent's disk.
func (b *building) agentsOwn(name string) *tls.Certificate {
	b.Helper()
	dir := filepath.Join(b.DataDir(name), "pki")
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "node-client.crt"), filepath.Join(dir, "node.key"))
	if err != nil {
		b.Fatal(err)
	}
	return &cert
}

// user is the certificate of a user without rights, by a CertificateSigningRequest.
func (b *building) user(name string) *tls.Certificate {
	b.Helper()
	key, err := pki.GenerateKey()
	if err != nil {
		b.Fatal(err)
	}
	request, err := signingRequest(name, key)
	if err != nil {
		b.Fatal(err)
	}
	ctx, csrs := b.Context(), b.Client.CertificatesV1().CertificateSigningRequests()
	csr, err := csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{Request: request,
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := csrs.UpdateApproval(ctx, name, csr, metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
	var cert tls.Certificate
	Eventually(b, deadline, "a signed certificate", func(ctx context.Context) error {
		csr, err := csrs.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(csr.Status.Certificate) == 0 {
			return errors.New("it is not signed yet")
		}
		keyPEM, err := pki.MarshalKey(key)
		if err == nil {
			cert, err = tls.X509KeyPair(csr.Status.Certificate, keyPEM)
		}
		return err
	})
	return &cert
}

func signingRequest(name string, key crypto.Signer) ([]byte, error) {
	template := &x509.CertificateRequest{}
	template.Subject.CommonName = name
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// token is one of an account in kube-system.
func (b *building) token(account string) string {
	b.Helper()
	ctx, accounts := b.Context(), b.Client.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}},
		metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	token, err := accounts.CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return token.Status.Token
}

// remove takes s3 out of the store and a2 out of the cluster, and revokes a certificate and a user.
func (b *building) remove(revoked *tls.Certificate, user string) {
	b.Helper()
	b.Barque(b, "user", "revoke", user, "--why", "a test")
	b.Barque(b, "cluster", "remove", "s3", "--yes")
	b.K("delete", "node", "a2")
	serial := fmt.Sprintf("%X", revoked.Leaf.SerialNumber)
	b.Barque(b, "cert", "revoke", "--serial", serial, "--why", "a test")
	Eventually(b, deadline, "the list of revoked certificates, on the agent too", func(ctx context.Context) error {
		r := b.BarqueResult(ctx, "cert", "revoked")
		if r.Error != nil ||
			!contains(r.Out, "agent", "a2", "its Node was deleted", "server", "s3", "certificate",
				strings.ToLower(serial), "user", user) {
			return fmt.Errorf("%s%s", r.Out, r.Err)
		}
		data, err := os.ReadFile(filepath.Join(b.DataDir("a1"), "revoked.json"))
		if err == nil &&
			(!bytes.Contains(data, []byte(`"s3.`)) || !bytes.Contains(data, []byte(`"a2"`)) ||
				!bytes.Contains(data, []byte(strings.ToLower(serial))) || !bytes.Contains(data, []byte(`"`+user+`"`))) {
			err = fmt.Errorf("the agent has %s", data)
		}
		return err
	})
	Eventually(b, deadline, "the removed agent's Node is gone, whatever its kubelet does",
		func(ctx context.Context) error {
			if _, err := b.Client.CoreV1().Nodes().Get(ctx, "a2", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
}

func (b *building) client(cert *tls.Certificate) *http.Client {
	config := &tls.Config{RootCAs: b.ca.Pool(),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }}
	return &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

// get asks for a path.
func (b *building) get(host, path string, cert *tls.Certificate) (string, error) {
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://"+host+path, nil)
	if err != nil {
		return "", err
	}
	if b.proxies[cert] {
		request.Header.Set("X-Remote-User", "mary")
		request.Header.Set("X-Remote-Group", "system:masters")
	}
	if token := b.tokens[cert]; token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := b.client(cert).Do(request)
	if err != nil {
		return closedBy(err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return yes, nil
	case http.StatusForbidden:
		return no, nil
	case http.StatusUnauthorized:
		return unknown, nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return "", errors.Join(err, fmt.Errorf("%s: %s", response.Status, body))
}

// closedBy is the answer of a peer that refuses the handshake.
func closedBy(err error) (string, error) {
	var alert tls.AlertError
	if errors.As(err, &alert) || strings.Contains(err.Error(), "remote error: tls") || errors.Is(err, io.EOF) {
		return unknown, nil
	}
	return "", err
}

// join makes a request of package join.
func (b *building) join(cert *tls.Certificate, act func(context.Context, *join.Client) error) (string, error) {
	own := cert
	if len(cert.Certificate) == 0 {
		own = nil
	}
	client, err := join.NewClient(b.at["s1"]+":6443", b.ca, own, time.Now)
	if err != nil {
		return "", err
	}
	defer client.Close()
	err = b.patiently(func() error { return act(b.Context(), client) })
	var refused *join.RefusedError
	switch {
	case err == nil:
		return yes, nil
	case errors.As(err, &refused) && refused.Status == http.StatusForbidden:
		return no, nil
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		return unknown, nil
	}
	return "", err
}

// peer opens a connection to the servers' own port, and says which cluster it is for.
func (b *building) peer(cert *tls.Certificate, protocol string) (net.Conn, string, error) {
	dialer := tls.Dialer{
		Config: &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, InsecureSkipVerify: true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }}}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", b.at["s1"]+":6444")
	if err != nil {
		answer, err := closedBy(err)
		return nil, answer, err
	}
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return conn, "", err
	}
	greeting := binary.BigEndian.AppendUint16(nil, uint16(len(b.cluster)))
	greeting = append(append(greeting, b.cluster...), 0, 0)
	if _, err := conn.Write(greeting); err != nil {
		answer, err := closedBy(err)
		return conn, answer, err
	}
	var welcome [1]byte
	if _, err := io.ReadFull(conn, welcome[:]); err != nil {
		answer, err := closedBy(err)
		return conn, answer, err
	}
	if welcome[0] != 0 {
		return conn, no, nil
	}
	return conn, yes, nil
}

// ask calls the store of s1.
func (b *building) ask(cert *tls.Certificate, kind byte, payload []byte) (data []byte, answer string, err error) {
	answer = unknown
	var running sync.WaitGroup
	defer running.Wait()
	client := rpc.NewClient(
		rpc.ClientConfig{Running: &running, Patience: time.Minute, Urgent: func(byte) bool { return true },
			Dial: func(context.Context) (conn net.Conn, err error) {
				if conn, answer, err = b.peer(cert, "barque-store/3"); err == nil && answer != yes {
					err = errors.New("no welcome")
				}
				if conn != nil && err == nil {
					err = conn.SetDeadline(time.Time{})
				}
				return conn, err
			}})
	defer client.Close()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	frame, err := client.Call(ctx, kind, payload)
	switch {
	case err != nil && answer != yes:
		return nil, answer, nil
	case err != nil:
		return nil, "", err
	case frame.Kind == 128:
		return frame.Payload, yes, nil
	case frame.Kind == 132:
		return frame.Payload, no, nil
	}
	return nil, "", fmt.Errorf("the answer %d: %s", frame.Kind, frame.Payload)
}

// greeted is the answer to a hello.
type greeted struct {
	Known   map[string]string
	Leader  string
	Removed *struct{ Name, Why string }
}

func (b *building) hello(cert *tls.Certificate, id string) (g greeted, err error) {
	data, answer, err := b.ask(cert, 9, fmt.Appendf(nil, `{"id":%q}`, id))
	if err == nil && answer != yes {
		err = fmt.Errorf("the answer is %s", answer)
	}
	if err != nil {
		return g, err
	}
	return g, json.Unmarshal(data, &g)
}

// ids are the servers' IDs, as they were before any removal.
var ids sync.Map

// idOf is a server's ID in the store.
func (b *building) idOf(name string) string {
	b.Helper()
	if id, ok := ids.Load(b.cluster + name); ok {
		return id.(string)
	}
	g, err := b.hello(
		b.issueFor(pki.Peers,
			pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization},
				Usage: pki.Client | pki.Server}), "nobody")
	if err != nil {
		b.Fatal(err)
	}
	for id := range g.Known {
		server, _, _ := strings.Cut(id, ".")
		ids.Store(b.cluster+server, id)
	}
	id, ok := ids.Load(b.cluster + name)
	if !ok {
		b.Fatalf("the members are %v", g.Known)
	}
	return id.(string)
}

// removedServerHears: a server that was off learns of its removal, and of nothing else.
func (b *building) removedServerHears(t *testing.T, cert *tls.Certificate) {
	g, err := b.hello(cert, b.idOf("s3"))
	if err != nil || g.Removed == nil || g.Removed.Name != "s3" || len(g.Known) > 0 || g.Leader != "" {
		t.Errorf("it hears %+v, %v", g, err)
	}
}

// comeBack: with new tokens the machines are members again at once, by their old names. Their
// earlier credentials stay void.
func (b *building) comeBack(t *testing.T) {
	stolen := b.agentsOwn("a2")
	b.Dev(t, "stop", "s3") // it ends by itself, at some time
	b.Dev(t, "start", "--wipe", "s3")
	b.Dev(t, "stop", "a2")
	token := strings.TrimSpace(b.Barque(t, "token", "create"))
	if r := b.rejoin(t, "a2", token); !contains(r.Err, admitted) {
		t.Fatalf("the agent joins again: %s", r.Err)
	}
	b.Dev(t, "start", "a2")
	Eventually(t, deadline, "a whole cluster", b.Healthy)
	for _, c := range []struct {
		what string
		cert *tls.Certificate
		want string
	}{{"the agent", b.agentsOwn("a2"), yes}, {"a copy of its certificate from before", stolen, unknown}} {
		if answer, err := doors["API: Nodes"](b, c.cert); answer != c.want || err != nil {
			t.Errorf("%s: %s, %v", c.what, answer, err)
		}
	}
	old := b.issueFor(pki.Peers,
		pki.Request{CommonName: "s3", Organization: []string{join.ServersOrganization}, Usage: pki.Client | pki.Server,
			Holder: b.idOf("s3")})
	for _, door := range []string{"Raft", "store"} {
		if answer, err := doors[door](b, old); answer != no || err != nil {
			t.Errorf("%s with a certificate of the server from before: %s, %v", door, answer, err)
		}
	}
	// It holds after a restart, from the disk.
	b.Dev(t, "stop", "s1")
	b.Dev(t, "start", "s1")
	Eventually(t, deadline, "a whole cluster", b.Healthy)
	if answer, err := doors["API: Nodes"](b, stolen); answer != unknown || err != nil {
		t.Errorf("after a restart: %s, %v", answer, err)
	}
}

// rejoin starts an agent once with --rejoin, and stops it.
func (b *building) rejoin(t *testing.T, name, token string) Result {
	path, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	return b.OnResult(t.Context(), name, "timeout", "60", path, "agent", "--rejoin", "--server",
		"https://"+b.at["s1"]+":6443", "--token", token, "--name", name,
		"--node-ip", b.at[name], "--data-dir", b.DataDir(name), "--kubelet-root-dir", t.TempDir())
}

// watching is a watch of Nodes.
type watching struct {
	cancel context.CancelFunc
	over   chan struct{}
}

// watch begins a watch that its client does not end.
func (b *building) watch(cert *tls.Certificate) *watching {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	w := &watching{cancel: cancel, over: make(chan struct{})}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"https://"+b.at["s1"]+":6443/api/v1/nodes?watch=1&timeoutSeconds=3600", nil)
	if err != nil {
		b.Fatal(err)
	}
	client := b.client(cert)
	client.Timeout = 0
	response, err := client.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		b.Fatalf("a watch: %v, %v", response, err)
	}
	go func() { // ends with the watch, or with the test
		defer close(w.over)
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
	}()
	return w
}

func (w *watching) ended(t *testing.T) bool {
	t.Helper()
	defer w.cancel()
	select {
	case <-w.over:
		return true
	case <-time.After(time.Minute):
		return false
	}
}
