package join

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// Client speaks to one server of the cluster.
type Client struct {
	base string // https://host:port
	http *http.Client
}

// Verifier is the trust of a client: one CA, or the present ones.
type Verifier interface {
	Verify(cert *x509.Certificate, others []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) error
}

// NewClient returns a client for the server at the address (host:port, or an https URL). It
// believes only servers of this CA's cluster. identity may be nil.
func NewClient(address string, ca Verifier, identity *tls.Certificate, now func() time.Time) (*Client, error) {
	base, err := baseURL(address)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The address from the user may be missing in the server's certificate (a load balancer's,
		// a forwarded port's). It is enough that a server of this cluster answers, which its
		// certificate proves.
		InsecureSkipVerify:    true,
		VerifyPeerCertificate: verifyServer(ca, now),
	}
	if identity != nil {
		// It is shown whichever CAs the server names: those are the CAs for clients of the API, and
		// a server's own certificate is of another one.
		config.GetClientCertificate = func(
			*tls.CertificateRequestInfo,
		) (*tls.Certificate, error) {
			return identity, nil
		}
	}
	return &Client{base: base,
		http: &http.Client{Timeout: 30 * time.Second,
			Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}}, nil
}

func baseURL(address string) (string, error) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return "", fmt.Errorf("server address %q: want https://HOST:6443", address)
	}
	if u.Port() == "" {
		u.Host += ":6443"
	}
	return "https://" + u.Host, nil
}

func verifyServer(ca Verifier, now func() time.Time) func([][]byte, [][]*x509.Certificate) error {
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		var certs []*x509.Certificate
		for _, der := range raw {
			cert, err := x509.ParseCertificate(der)
			if err != nil {
				return err
			}
			certs = append(certs, cert)
		}
		if len(certs) == 0 {
			return errors.New("the server shows no certificate")
		}
		if err := ca.Verify(certs[0], certs[1:], x509.ExtKeyUsageServerAuth, now()); err != nil {
			return fmt.Errorf("the server's certificate: %w", err)
		}
		return ofServer(certs[0])
	}
}

// FetchCA gets the cluster's CA from the address and returns it if the token pins it. It sends no
// secret. If a server refuses, the error is a *RefusedError.
func FetchCA(ctx context.Context, address string, t pki.Token) (*pki.Authority, error) {
	base, err := baseURL(address)
	if err != nil {
		return nil, err
	}
	// Not verified on purpose: the answer is only trusted if it matches the pin.
	client := &http.Client{Timeout: 10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+Prefix+"ca", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s for the cluster's CA: %w", base, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("ask %s for the cluster's CA: %w", base, err)
	}
	if response.StatusCode != http.StatusOK {
		if refused := refusal(base, response, body); refused.Reason != "" {
			return nil, refused
		}
		return nil,
			fmt.Errorf("%s is no Barque server: asked for the cluster's CA it answers %s", base, response.Status)
	}
	return t.Pinned(body)
}

// RefusedError is returned when a server answered with a refusal.
type RefusedError struct {
	Server string
	Status int
	Reason string
	// RetryAfter is the time of the next try, counted from the answer, if the server sent one; it
	// does with http.StatusTooManyRequests.
	RetryAfter time.Duration
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%s refused: %s", e.Server, e.Reason) }

// refusal reads an answer that is not 200; Reason is empty when it is not a Barque server's.
func refusal(server string, response *http.Response, body []byte) *RefusedError {
	e := &RefusedError{Server: server, Status: response.StatusCode}
	var f failure
	if json.Unmarshal(body, &f) == nil {
		e.Reason = f.Error
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// Server joins as a server.
func (c *Client) Server(ctx context.Context, r Request) (out ServerGrant, err error) {
	err = c.join(ctx, token.Server, r, &out)
	return out, err
}

// Agent joins as an agent.
func (c *Client) Agent(ctx context.Context, r Request) (out AgentGrant, err error) {
	err = c.join(ctx, token.Agent, r, &out)
	return out, err
}

// join signs the request with the token's key, and opens the answer, which is sealed to the key of
// the attempt. A former token is shown instead.
func (c *Client) join(ctx context.Context, role string, r Request, out any) error {
	t, err := pki.ParseToken(r.Token)
	if err != nil {
		return err
	}
	if t.Former() {
		return c.post(ctx, role, r, out)
	}
	attempt := cmp.Or(r.Attempt, rand.Text())
	sealing, err := pki.SealingKeyOf(attempt)
	if err != nil {
		return err
	}
	r.Token, r.Attempt = "", ""
	r.Role, r.TokenID, r.Nonce, r.SealTo = role, t.ID, []byte(rand.Text()), sealing.Public()
	request, err := json.Marshal(r)
	if err != nil {
		return err
	}
	key, err := t.Key()
	if err != nil {
		return err
	}
	var answer Sealed
	err = c.post(ctx, "node", SignedRequest{Request: request, Signature: ed25519.Sign(key, signed(request))}, &answer)
	var refused *RefusedError
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		refused.Reason = "it is of an earlier version, which does not know join tokens of the form b2: give the address of an upgraded server"
	}
	if err != nil {
		return err
	}
	plain, err := sealing.Open(answer.Sealed, bound(request))
	if err == nil {
		err = json.Unmarshal(plain, out)
	}
	if err != nil {
		return fmt.Errorf("answer of %s: %w", c.base, err)
	}
	return nil
}

// Renew gets new certificates for the agent whose client certificate is the client's identity.
func (c *Client) Renew(ctx context.Context, r Renewal) (Certificates, error) {
	var out Certificates
	return out, c.post(ctx, "renew", r, &out)
}

// SharedKey gets the key with this digest that all servers have. The client's identity is a
// server's.
func (c *Client) SharedKey(ctx context.Context, digest string) ([]byte, error) {
	var out SharedKey
	err := c.post(ctx, "shared-key", sharedKeyRequest{digest}, &out)
	return out.Key, err
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// maxAnswer bounds a server's answer. The longest is a list of revoked certificates: some 250
// bytes each.
const maxAnswer = 64 << 20

func (c *Client) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+Prefix+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("join by %s: %w", c.base, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("join by %s: %w", c.base, err)
	}
	if response.StatusCode != http.StatusOK {
		refused := refusal(c.base, response, answer)
		if refused.Reason == "" {
			refused.Reason = response.Status
		}
		return refused
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("answer of %s: %w", c.base, err)
	}
	return nil
}

// AskVersion asks a server of the cluster for its version and its time.
func AskVersion(ctx context.Context, address string, ca *pki.Authority) (served string, clock time.Time, err error) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The address need not be in the server's certificate; see NewClient. The cluster is
		// verified, but the certificate's validity is not: this check is to find a wrong clock.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf := s.PeerCertificates[0]
			return ca.Verify(leaf, s.PeerCertificates[1:], x509.ExtKeyUsageServerAuth,
				leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore)/2))
		},
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/version", nil)
	if err != nil {
		return "", clock, err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", clock, err
	}
	defer response.Body.Close()
	var body struct {
		GitVersion string `json:"gitVersion"`
	}
	if clock, err = http.ParseTime(response.Header.Get("Date")); err != nil {
		return "", clock, fmt.Errorf("the server's time: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return "", clock, fmt.Errorf("asked for its version the server answers %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&body); err != nil {
		return "", clock, errors.Join(errors.New("the server's version cannot be read"), err)
	}
	return body.GitVersion, clock, nil
}

// joinPatience is how long a joining machine retries at an overloaded server.
const joinPatience = 5 * time.Minute

// RetryWhenBusy repeats a request until the server has time for it. A server with too many join
// requests names the time of the next try. Any other answer is returned. That answer is returned as
// well after joinPatience, or when the context ends.
func RetryWhenBusy[A any](ctx context.Context, logger *slog.Logger, ask func() (A, error)) (A, error) {
	until := time.Now().Add(joinPatience)
	for {
		answer, err := ask()
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests {
			return answer, err
		}
		wait := max(refused.RetryAfter, time.Second)
		if time.Now().Add(wait).After(until) {
			return answer, err
		}
		logger.Warn("the server has too many requests to join; trying again later", "server", refused.Server, "retryIn",
			wait, "err", err)
		select {
		case <-ctx.Done():
			return answer, errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}
