package clustertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// thief is a user with rights on Secrets of kube-system and on all paths beside the API's objects,
// and with no way to become an administrator.
type thief struct {
	t      *testing.T
	c      *Cluster
	client kubernetes.Interface
	server string // https://…
	ca     string // digest of the cluster's CA, which is public
}

func newThief(t *testing.T, c *Cluster) *thief {
	t.Helper()
	ctx, admin := t.Context(), c.Client
	_, err := admin.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "thief"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().ClusterRoles().Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}, Verbs: []string{"*"}},
			{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "thief"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "thief"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "thief", Namespace: metav1.NamespaceSystem}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	token, err := admin.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx, "thief",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	th := &thief{t: t, c: c, server: config.Host, ca: digestOfCA(t, config.CAData)}
	th.client = th.as(token.Status.Token)
	return th
}

func digestOfCA(t *testing.T, data []byte) string {
	t.Helper()
	block, _ := pem.Decode(data)
	if block == nil {
		t.Fatal("the kubeconfig has no CA")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// as is a client with a bearer token.
func (th *thief) as(bearer string) kubernetes.Interface {
	th.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", th.c.Kubeconfig())
	if err != nil {
		th.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(
		&rest.Config{Host: config.Host, BearerToken: bearer, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData}})
	if err != nil {
		th.t.Fatal(err)
	}
	return client
}

// post asks to join as an earlier version did, with the token in the request.
func (th *thief) post(role, token string) (status int, answer string) {
	th.t.Helper()
	body, err := json.Marshal(
		map[string]any{"token": token, "name": "ghost", "address": "10.99.0.9", "clock": time.Now(),
			"version": "v0.1.0", "gossipKey": make([]byte, 32)})
	if err != nil {
		th.t.Fatal(err)
	}
	client := &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	response, err := client.Post(th.server+"/barque/join/v1/"+role, "application/json", bytes.NewReader(body))
	if err != nil {
		th.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		th.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// Readers and creators of Secrets in kube-system get nothing of join tokens. A token for one use
// lets exactly one machine in, whichever server each machine asks at the same time, and whichever
// leader stops.
func TestJoinTokensAndThieves(t *testing.T) {
	needs.AllTests(t)
	c := Start(t, Options{})
	th := newThief(t, c)
	t.Run("Secrets", th.secrets)
	t.Run("TheAPIOfTokens", th.api)
	t.Run("Race", th.race)
	t.Run("StoppedLeader", th.stoppedLeader)
	t.Run("Told", th.told)
	t.Run("ForgedServer", th.forgedServer)
}

// secrets: neither the API's own objects nor a thief's objects let a machine in.
func (th *thief) secrets(t *testing.T) {
	ctx := t.Context()
	for _, role := range []string{"server", "agent"} {
		text := strings.TrimSpace(th.c.Barque(t, "token", "create", "--role", role))
		secret := text[strings.LastIndexByte(text, '.')+1:]
		kinds := strings.Fields(th.c.Kubectl(t, "api-resources", "--verbs=list", "-o", "name"))
		all := th.c.Kubectl(t, "get", strings.Join(kinds, ","), "-A", "-o", "json", "--show-managed-fields")
		if len(kinds) < 30 || strings.Contains(all, secret) ||
			strings.Contains(all, base64.StdEncoding.EncodeToString([]byte(secret))) {
			t.Errorf("the token of a %s is in one of %d kinds of objects", role, len(kinds))
		}
	}
	list, err := th.client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		if s.Type == corev1.SecretTypeBootstrapToken {
			t.Errorf("there is the Secret %s", s.Name)
		}
	}
	for _, role := range []string{"server", "agent"} {
		id := "rogue" + role[:1]
		_, err := th.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
				Type: corev1.SecretTypeBootstrapToken,
				StringData: map[string]string{"token-id": id, "token-secret": "0123456789abcdef", "barque-role": role,
					"barque-ca": th.ca, "usage-bootstrap-authentication": "true"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status, answer := th.post(role, "b1."+th.ca+"."+id+".0123456789abcdef")
		if status != http.StatusForbidden || !strings.Contains(answer, "do not count any more") {
			t.Errorf("as %s: %d %s", role, status, answer)
		}
		// It serves its purpose in Kubernetes.
		review, err := th.as(id+".0123456789abcdef").AuthenticationV1().SelfSubjectReviews().Create(ctx,
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil || review.Status.UserInfo.Username != "system:bootstrap:"+id {
			t.Errorf("as a bootstrap token: %v, %v", review, err)
		}
	}
}

// api: rights on all paths do not suffice to read or make tokens.
func (th *thief) api(t *testing.T) {
	client := th.client.Discovery().RESTClient()
	for name, err := range map[string]error{
		"list":   client.Get().AbsPath("/barque/v1/tokens").Do(t.Context()).Error(),
		"create": client.Post().AbsPath("/barque/v1/tokens").Body([]byte(`{"role":"server"}`)).Do(t.Context()).Error(),
	} {
		if err == nil || !strings.Contains(err.Error(), "system:masters") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// joinServer tries to join as a server with an address that the node does not have. So it may be
// admitted, and gets no further.
func (c *Cluster) joinServer(t *testing.T, from, by, token, name, last string) Result {
	address := c.address(t, by)
	mine := address[:strings.LastIndexByte(address, '.')] + "." + last
	path, err := Binary()
	if err != nil {
		t.Error(err)
	}
	return c.OnResult(t.Context(), from, "timeout", "300", path, "server", "--join", "https://"+address+":6443",
		"--token", token, "--name", name,
		"--node-ip", mine, "--data-dir", filepath.Join(t.TempDir(), name), "--kubelet-root-dir", t.TempDir())
}

const (
	admitted = "admitted to the cluster"
	usedUp   = "used up"
)

func (th *thief) serverToken(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(th.c.Barque(t, "token", "create", "--role=server"))
}

// race: two machines ask two servers with one token at once.
func (th *thief) race(t *testing.T) {
	token := th.serverToken(t)
	var results [2]Result
	var wg sync.WaitGroup
	for i, by := range []string{"s2", "s3"} {
		wg.Go(func() {
			results[i] = th.c.joinServer(t, by, by, token, fmt.Sprintf("racer%d", i), fmt.Sprint(250+i))
		})
	}
	wg.Wait()
	in, refused := 0, 0
	for _, r := range results {
		switch {
		case contains(r.Err, admitted):
			in++
		case contains(r.Err, usedUp):
			refused++
		}
	}
	if in != 1 || refused != 1 {
		t.Errorf("%d got in, %d were refused:\n%s\n%s", in, refused, results[0].Err, results[1].Err)
	}
	if r := th.c.joinServer(t, "s2", "s2", token, "late", "252"); !contains(r.Err, usedUp) ||
		contains(r.Err, admitted) {
		t.Errorf("with the used-up token: %s", r.Err)
	}
}

// stoppedLeader: the leader stops before the use is counted. The machine gets in under the next
// one, and the token is used up.
func (th *thief) stoppedLeader(t *testing.T) {
	token, leader := th.serverToken(t), th.c.Leader(t)
	by := "s1"
	if leader == by {
		by = "s2"
	}
	th.c.Dev(t, "pause", leader)
	defer th.c.Dev(t, "resume", leader)
	Eventually(t, deadline, "a machine joins under another leader", func(context.Context) error {
		if r := th.c.joinServer(t, by, by, token, "patient", "253"); !contains(r.Err, admitted) {
			if contains(r.Err, usedUp) {
				t.Fatalf("the use is gone: %s", r.Err) // each try has a directory, and so an attempt, of its own
			}
			return fmt.Errorf("it says %s", r.Err)
		}
		return nil
	})
	if r := th.c.joinServer(t, by, by, token, "second", "254"); !contains(r.Err, usedUp) || contains(r.Err, admitted) {
		t.Errorf("a second machine: %s", r.Err)
	}
}

// forgedServer: a thief of a CA's key signs a certificate for a server. It does not get the keys
// that all servers share, and so no new CA's; the servers themselves do. The CA for clients makes
// no servers at all.
func (th *thief) forgedServer(t *testing.T) {
	pkiDir := filepath.Join(th.c.DataDir("s1"), "pki")
	var files [2][]byte
	for i, name := range []string{"ca.crt", "ca.key"} {
		data, err := os.ReadFile(filepath.Join(pkiDir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[i] = data
	}
	ca, err := pki.ParseAuthority(files[0], files[1])
	if err != nil {
		t.Fatal(err)
	}
	for by, want := range map[*pki.Authority]int{ca: http.StatusUnauthorized,
		separateCAs(t, th.c.DataDir("s1"))[pki.Peers]: http.StatusForbidden} {
		forged, err := identity.New(t.Context(),
			identity.Config{Name: "forged", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
				Issue: pki.TrustOf(by).Signs(func() pki.Request {
					return pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization},
						Usage: pki.Client | pki.Server, Names: []string{"s1"}}
				}, time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		client, err := join.NewClient(th.server, ca, forged.Certificate(), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var refused *join.RefusedError
		if key, err := client.SharedKey(t.Context(), ca.Digest()); !errors.As(err, &refused) ||
			refused.Status != want || len(key) > 0 {
			t.Errorf("by %s it got %d bytes, %v", by.Certificate().Subject, len(key), err)
		}
	}
	if r := th.c.BarqueResult(t.Context(), "cert", "rotate", "--ca", "--yes"); r.Error != nil {
		t.Errorf("an exchange of the CA: %s%s", r.Out, r.Err)
	}
}

// told: operators see which machine was let in, when, and by which token.
func (th *thief) told(t *testing.T) {
	var members []struct {
		Name   string
		Joined *struct {
			At      time.Time
			TokenID string
			By      string
		}
	}
	Eventually(t, deadline, "the members say how they joined", func(context.Context) error {
		if err := json.Unmarshal([]byte(th.c.Barque(t, "cluster", "members", "-o", "json")), &members); err != nil {
			return err
		}
		for _, m := range members {
			if first := m.Name == "s1"; first != (m.Joined == nil) ||
				!first && (len(m.Joined.TokenID) != 6 || m.Joined.By == "" || m.Joined.At.IsZero()) {
				return fmt.Errorf("%s has joined by %+v", m.Name, m.Joined)
			}
		}
		return nil
	})
	if events := th.c.Kubectl(t, "get", "events", "--namespace=default",
		"--field-selector=reason=NodeAdmitted"); !contains(events, "server s2 at ", "by the join token") {
		t.Errorf("the events are\n%s", events)
	}
}
