package clustertest

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// ended is an expired certificate of a CA.
func (b *building) ended(ca *pki.Authority, r pki.Request) *tls.Certificate {
	b.Helper()
	key, err := pki.GenerateKey()
	if err != nil {
		b.Fatal(err)
	}
	// A CA issues nothing from before itself, so the end comes just after the beginning.
	r.Lifetime = time.Second
	certPEM, err := ca.Issue(r, key.Public(), ca.Certificate().NotBefore)
	if err != nil {
		b.Fatal(err)
	}
	keyPEM, err := pki.MarshalKey(key)
	if err != nil {
		b.Fatal(err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		b.Fatal(err)
	}
	if cert.Leaf.NotAfter.After(time.Now()) {
		b.Fatalf("the certificate of %q ends at %s", r.CommonName, cert.Leaf.NotAfter)
	}
	return &cert
}

// kubeletsOwn is the certificate with which an agent's kubelet answers.
func (b *building) kubeletsOwn(name string) *tls.Certificate {
	b.Helper()
	dir := filepath.Join(b.DataDir(name), "pki")
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "node-serving.crt"), filepath.Join(dir, "node.key"))
	if err != nil {
		b.Fatal(err)
	}
	return &cert
}

// bootstrapToken is one of Kubernetes' kind, in a Secret.
func (b *building) bootstrapToken() string {
	b.Helper()
	_, err := b.Client.CoreV1().Secrets(metav1.NamespaceSystem).Create(b.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-redtea"},
			Type: corev1.SecretTypeBootstrapToken,
			StringData: map[string]string{"token-id": "redtea", "token-secret": "0123456789abcdef",
				"usage-bootstrap-authentication": "true"}}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return "redtea.0123456789abcdef"
}

// gossip shows a credential to the port of gossip: in TLS, or else in a request of HTTP.
func (b *building) gossip(cert *tls.Certificate) (string, error) {
	dialer := net.Dialer{Timeout: time.Minute}
	conn, err := dialer.DialContext(b.Context(), "tcp", b.at["s1"]+":6445")
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	if token := b.tokens[cert]; token != "" {
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: gossip\r\nAuthorization: Bearer %s\r\n\r\n", token)
	} else if err := tls.Client(conn,
		&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}}).HandshakeContext(
		b.Context()); err == nil {
		return yes, nil
	}
	// Not a byte is answered. The port closes the connection, with or without the unread bytes.
	answer, err := io.ReadAll(conn)
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "", fmt.Errorf("the connection stays open: %w", err)
	case len(answer) > 0:
		return yes, nil
	}
	return unknown, nil
}

// askForAddresses asks a server for a session in which an agent holds addresses.
func (b *building) askForAddresses(ctx context.Context, server string, cert *tls.Certificate) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+b.at[server]+":6443"+hold.Path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "barque-hold")
	if token := b.tokens[cert]; token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := b.client(cert)
	client.Timeout = 0 // a session has no end
	return client.Do(request)
}

// addresses is the door of sessions for addresses. A server that does not lead names the leader.
func (b *building) addresses(cert *tls.Certificate) (string, error) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	response, err := b.askForAddresses(ctx, "s1", cert)
	if err != nil {
		return closedBy(err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusSwitchingProtocols, http.StatusMisdirectedRequest:
		return yes, nil
	case http.StatusForbidden:
		return no, nil
	case http.StatusUnauthorized:
		return unknown, nil
	}
	return "", errors.New(response.Status)
}

// holding begins a session for addresses at the leader, which the agent does not end.
func (b *building) holding(cert *tls.Certificate) *watching {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	w := &watching{cancel: cancel, over: make(chan struct{})}
	Eventually(b, deadline, "a session at the leader", func(context.Context) error {
		var answers []string
		for _, server := range []string{"s1", "s2", "s3"} {
			response, err := b.askForAddresses(ctx, server, cert)
			if err != nil {
				return err
			}
			if response.StatusCode == http.StatusSwitchingProtocols {
				go func() { // ends with the session, or with the test
					defer close(w.over)
					defer response.Body.Close()
					_, _ = io.Copy(io.Discard, response.Body)
				}()
				return nil
			}
			answers = append(answers, response.Status)
			response.Body.Close()
		}
		return fmt.Errorf("the servers answer %q", answers)
	})
	return w
}

// patiently repeats a request to join while its address has made too many of them.
func (b *building) patiently(ask func() error) (err error) {
	b.Helper()
	Eventually(b, deadline, "an answer, and not that there were too many requests", func(context.Context) error {
		err = ask()
		var refused *join.RefusedError
		if errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests {
			return err
		}
		return nil
	})
	return err
}

// tokensForJoining: a token that is used up, deleted, or over gives nothing, at the door that is
// for tokens. A machine's request is answered while it is good.
func (b *building) tokensForJoining(t *testing.T) {
	create := func(flags ...string) pki.Token {
		t.Helper()
		token, err := pki.ParseToken(
			strings.TrimSpace(b.Barque(t, append([]string{"token", "create", "--role=agent"}, flags...)...)))
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	client, err := join.NewClient(b.at["s1"]+":6443", b.ca, nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.SigningRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(token pki.Token, name string) error {
		return b.patiently(func() error {
			_, err := client.Agent(t.Context(),
				join.Request{Token: token.String(), Name: name, Address: "10.77.0.9", Clock: time.Now(), CSR: csr,
					GossipKey: make([]byte, ed25519.PublicKeySize), Version: version.Version})
			return err
		})
	}
	refused := func(what string, err error, want string) {
		t.Helper()
		var r *join.RefusedError
		if !errors.As(err, &r) || r.Status != http.StatusForbidden && r.Status != http.StatusUnauthorized ||
			!strings.Contains(r.Reason, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	brief, once, deleted := create("--ttl=1m"), create("--uses=1"), create()
	ends := time.Now().Add(time.Minute)
	if err := ask(brief, "localhost"); err == nil || !strings.Contains(err.Error(), "name for itself") {
		t.Fatalf("with a token that has not ended: %v", err)
	}
	if err := ask(once, "guest1"); err != nil {
		t.Fatalf("with a good token: %v", err)
	}
	refused("used up", ask(once, "guest2"), "used up")
	b.Barque(t, "token", "delete", deleted.ID)
	refused("deleted", ask(deleted, "guest3"), "not known")
	other := once
	other.Secret = strings.Repeat("a", len(other.Secret))
	refused("of another secret", ask(other, "guest4"), "not known")
	Eventually(t, deadline, "the end of a token", func(context.Context) error {
		if left := time.Until(ends); left > 0 { // requests meanwhile would use up the address' allowance
			return fmt.Errorf("it lasts for %s", left)
		}
		return nil
	})
	refused("over", ask(brief, "guest5"), "")
}

// portsInClear: the ports of health checks have health, and nothing else; those of kube-proxy's and
// of other components' own are closed.
func (b *building) portsInClear(t *testing.T) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, node := range []string{"s1", "a1"} {
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/livez": http.StatusOK,
			"/": http.StatusNotFound, "/metrics": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound,
			"/proxyMode": http.StatusNotFound, "/configz": http.StatusNotFound, "/pods": http.StatusNotFound,
			"/api/v1/secrets": http.StatusNotFound, "/barque/v1/tokens": http.StatusNotFound} {
			response, err := client.Get("http://" + b.at[node] + ":10256" + path)
			if err != nil {
				t.Errorf("%s at %s: %v", path, node, err)
				continue
			}
			body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
			response.Body.Close()
			if err != nil || response.StatusCode != want || strings.Contains(string(body), node) {
				t.Errorf("%s at %s: %s %s (%v)", path, node, response.Status, body, err)
			}
		}
		for _, port := range []string{"10249", "10248", "10255", "10257", "10259", "2379", "2380"} {
			dialer := net.Dialer{Timeout: time.Minute}
			if conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(b.at[node], port)); err == nil {
				conn.Close()
				t.Errorf("port %s of %s is open", port, node)
			}
		}
	}
}
