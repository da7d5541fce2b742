// Package remote asks a server's API from outside, with the identity of a kubeconfig, for
// operators' commands. It reports the outcome of a request, gives a refusal its exit code, and adds
// advice for the user. It also waits for procedures that the servers continue by themselves: a
// rotation of the gossip keys, an exchange of the CA.
package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/answerbody"
	"github.com/barque/barque/internal/exitcode"
)

// said is the error of a raw request whose answer was data. client-go does not search it for the
// reason, and calls it unknown, a conflict, or not found.
func said(data []byte, err error) error {
	code := StatusOf(err)
	if err == nil || code == 0 {
		return err
	}
	switch status, text := answerbody.Reason(data); {
	case status != nil:
		return refusedBy(status)
	case text != "":
		return &RefusalError{code, text}
	}
	return err
}

// Timeout bounds a request to the API. A live server answers sooner, even one that has just lost
// its leader: it gives a request up after raftstore.LeaderlessAfter.
const Timeout = 15 * time.Second

// NoAnswerError is returned when a server did not answer in time. It is a context.DeadlineExceeded.
type NoAnswerError struct{ Within time.Duration }

func (e *NoAnswerError) Error() string { return fmt.Sprintf("no answer within %s", e.Within) }
func (e *NoAnswerError) Unwrap() error { return context.DeadlineExceeded }

// Ask calls f with a context that ends after Timeout. The error has advice for the user.
func Ask(ctx context.Context, config *rest.Config, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, &NoAnswerError{Timeout})
	defer cancel()
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%s: ask %s: %w", what, config.Host, context.Cause(ctx))
	}
	return WithAdvice(config, WithoutLeader(err))
}

// unsent reports whether a failed request never reached a server. Either there was no connection,
// or the server was not trusted.
func unsent(err error) bool {
	var network *net.OpError
	var untrusted *tls.CertificateVerificationError
	return errors.As(err, &network) && network.Op == "dial" || errors.As(err, &untrusted) ||
		errors.Is(err, syscall.ECONNREFUSED)
}

// MaybeDone reports whether a failed request may have taken effect: the server does not know, or
// the answer is lost.
func MaybeDone(err error) bool {
	status := StatusOf(err)
	return err != nil && (status == http.StatusGatewayTimeout || status == 0 && !unsent(err))
}

// Outcome gives the error of a write its exit code. A write without an answer may have taken
// effect, unless it was never sent. look names the command that shows it.
func Outcome(err error, look string) error {
	if MaybeDone(err) {
		return &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("%w; %s", err, look)}
	}
	return Unchanged(err)
}

// dialPatience bounds the wait for a machine that is off. It is shorter than any request's timeout,
// so that a dial's failure proves that nothing was sent.
const dialPatience = 5 * time.Second

// Reaching returns the configuration for requests with the given timeout (0: none). Without a route
// to the server they fail sooner.
func Reaching(config *rest.Config, within time.Duration) *rest.Config {
	config = rest.CopyConfig(config)
	config.Timeout = within
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialPatience}).DialContext
	}
	return config
}

// Once returns a client for one request with a timeout, and a function that closes its connection.
// client-go keeps a transport with its connections for each Dial function: a polling command would
// leak one with every request.
func Once(config *rest.Config, within time.Duration) (client rest.Interface, end func(), err error) {
	config = Reaching(config, within)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	set, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, nil, err
	}
	return set.Discovery().RESTClient(), func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) }, nil
}

// ServerURL returns the URL of a server from HOST or HOST:PORT. The default port is the API's.
func ServerURL(address string) (string, error) {
	host := strings.TrimPrefix(address, "https://")
	if host == "" || strings.ContainsAny(host, "/@ ?#") {
		return "", errors.New("want HOST or HOST:PORT")
	}
	const port = "6443"
	bare := host
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		bare = host[1 : len(host)-1]
	}
	if ip, err := netip.ParseAddr(bare); err == nil {
		host = net.JoinHostPort(ip.String(), port)
	} else if !strings.Contains(host, ":") {
		host = net.JoinHostPort(host, port)
	}
	name, number, err := net.SplitHostPort(host)
	if err != nil {
		return "", fmt.Errorf("want HOST or HOST:PORT: %w", err)
	}
	if n, err := strconv.ParseUint(number, 10, 16); err != nil || n == 0 || name == "" {
		return "", errors.New("want HOST or HOST:PORT, with a port from 1 to 65535")
	}
	return "https://" + host, nil
}

// Observation asks one server.
func Observation(ctx context.Context, config *rest.Config, address string) (*clusterstatus.Observation, error) {
	o := new(clusterstatus.Observation)
	if err := GetJSON(ctx, config, address, clusterstatus.StatusPath+"?form="+clusterstatus.FormObservation,
		o); err != nil {
		return nil, fmt.Errorf("ask %s for the cluster's status: %w", address, err)
	}
	return o, nil
}

// RefusalError is returned when a server has answered with a refusal.
type RefusalError struct {
	Status int
	Reason string
}

func (e *RefusalError) Error() string {
	return fmt.Sprintf("the server answers %d: %s", e.Status, e.Reason)
}

// GetJSON asks a server, with the identity of the kubeconfig, for something.
func GetJSON(ctx context.Context, config *rest.Config, address, path string, into any) error {
	return CallJSON(ctx, config, http.MethodGet, address, path, nil, into)
}

// CallJSON is GetJSON with another method and more headers.
func CallJSON(
	ctx context.Context, config *rest.Config, method, address, path string, header http.Header, into any,
) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	client.Timeout = 0 // the context has one
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(address, "/")+path, nil)
	if err != nil {
		return err
	}
	maps.Copy(r.Header, header)
	r.Header.Set("User-Agent", rest.DefaultKubernetesUserAgent())
	response, err := client.Do(r)
	if err != nil {
		return Because(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return refusal(response)
	}
	return Because(ctx, json.NewDecoder(response.Body).Decode(into))
}

// Because returns the reason why this side gave a request up, or the request's error.
func Because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// refusal returns why a request was refused, nil when it was not.
func refusal(r *http.Response) error {
	if r.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("the server answers %s: %w", r.Status, err)
	}
	var status struct {
		Message string                `json:"message"`
		Error   string                `json:"error"`
		Details *metav1.StatusDetails `json:"details"`
	}
	if json.Unmarshal(text, &status) != nil || status.Message+status.Error == "" {
		return &RefusalError{r.StatusCode, strings.TrimSpace(string(text))}
	}
	return refusedBy(
		&metav1.Status{Code: int32(r.StatusCode), Message: status.Message + status.Error, Details: status.Details})
}

// RightsAdvice names the source of missing rights; empty for any other failure.
func RightsAdvice(config *rest.Config, err error) string {
	var refused *RefusalError
	status := 0
	if errors.As(err, &refused) {
		status = refused.Status
	}
	switch {
	case status == http.StatusUnauthorized, apierrors.IsUnauthorized(err):
		return whyUnauthorized(config)
	case status == http.StatusForbidden, apierrors.IsForbidden(err):
		return "ask an administrator, whose kubeconfig is DATA-DIR/admin.kubeconfig on each server"
	}
	return ""
}

// WithAdvice adds the user's next step to the error of a request.
func WithAdvice(config *rest.Config, err error) error {
	if err == nil {
		return nil
	}
	if advice := RightsAdvice(config, err); advice != "" {
		return fmt.Errorf("%w; %s", err, advice)
	}
	var refused *RefusalError
	var away *net.OpError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w; see `barque cluster status` for the cause and the remedy", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf(
			"%w; `barque cluster status` tells whether the cluster has a leader, without which nothing is read or written", err)
	case errors.As(err, &away) && away.Op == "dial":
		return fmt.Errorf(
			"%w; `barque cluster status --server ADDRESS` asks another server that answers; a kubeconfig with its address works as well", err)
	}
	return err
}

// whyUnauthorized looks for the reason in the client's certificate.
func whyUnauthorized(config *rest.Config) string {
	const fresh = "a fresh one is in DATA-DIR/admin.kubeconfig on each server; `barque dev up` renews that of a dev cluster"
	data := config.CertData
	if len(data) == 0 && config.CertFile != "" {
		data, _ = os.ReadFile(config.CertFile) // without it the answer is the general one
	}
	if block, _ := pem.Decode(data); block != nil {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && time.Now().After(cert.NotAfter) {
			return fmt.Sprintf("the certificate of %q in the kubeconfig ended at %s: %s", cert.Subject.CommonName,
				cert.NotAfter.UTC().Format(time.RFC3339), fresh)
		}
	}
	return "the kubeconfig's identity is not known there, or its certificate is revoked: " + fresh
}
