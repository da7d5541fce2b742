package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/membership/enroll"
)

// asker asks servers about the cluster. It needs no quorum, and no server in particular: where the
// one of the kubeconfig does not answer it asks those that are known from elsewhere, and where one
// server cannot reach another it asks that one itself.
type asker struct {
	kubeconfig string
	servers    []string // addresses of API servers, instead of the kubeconfig's
	dataDir    string   // of a server on this machine, which knows the others
	timeout    time.Duration
}

func addAskerFlags(c *cobra.Command) *asker {
	a := new(asker)
	c.Flags().StringVar(&a.kubeconfig, "kubeconfig", "", kubeconfigHelp)
	c.Flags().StringSliceVar(&a.servers, "server", nil, "address of a server to ask instead of the kubeconfig's, HOST[:6443]; may be repeated")
	c.Flags().StringVar(&a.dataDir, "data-dir", defaultDataDir, "data directory of the server on this machine; its kubeconfig and the addresses in it are used when nothing else answers")
	c.Flags().DurationVar(&a.timeout, "timeout", 5*time.Second, "how long a server is waited for")
	return a
}

// check refuses what cannot be meant.
func (a *asker) check(c *cobra.Command) error {
	if a.timeout <= 0 {
		return &usageError{c.CommandPath(), fmt.Errorf("--timeout %s: want how long, such as 5s", a.timeout)}
	}
	for i, s := range a.servers {
		address, err := serverURL(s)
		if err != nil {
			return &usageError{c.CommandPath(), fmt.Errorf("--server %q: %w", s, err)}
		}
		a.servers[i] = address
	}
	return nil
}

// config is the client's configuration: the kubeconfig's, or that of the server on this machine.
func (a *asker) config() (*rest.Config, error) {
	config, err := clientConfig(a.kubeconfig)
	if err == nil || a.kubeconfig != "" || os.Getenv("KUBECONFIG") != "" {
		return config, err
	}
	local := filepath.Join(a.dataDir, "admin.kubeconfig")
	if _, statErr := os.Stat(local); statErr != nil {
		return nil, err
	}
	return clientConfig(local)
}

// heard is what came of asking.
type heard struct {
	config       *rest.Config
	observations []*clusterstatus.Observation
	at           map[string]string // the address at which each server, by name, has answered
	unreached    []clusterstatus.Unreached
	begun        *clusterstatus.Warning // what the server on this machine was in the middle of
	procedures   clusterstatus.Procedures
}

// to is the client's configuration for an address.
func (h *heard) to(address string) *rest.Config {
	config := rest.CopyConfig(h.config)
	config.Host = address
	return config
}

// ask asks until at least one server has answered. When none has, the error says which were asked
// and what each said; the addresses are returned with it.
func (a *asker) ask(ctx context.Context) (*heard, error) {
	config, err := a.config()
	if err != nil {
		return nil, err
	}
	h := &heard{config: config, at: map[string]string{}, begun: ask.Begun(a.dataDir), procedures: a.procedures()}
	first := a.servers
	if len(first) == 0 {
		first = []string{config.Host}
	}
	errs := h.askAll(ctx, first, a.timeout)
	if len(h.observations) == 0 && len(a.servers) == 0 && !slices.ContainsFunc(errs, answered) {
		errs = append(errs, h.askAll(ctx, a.known(), a.timeout)...)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(h.observations) == 0 {
		return h, nobodyAnswers(config, errs, h)
	}
	h.askAll(ctx, h.missing(), min(a.timeout, 2*time.Second))
	return h, nil
}

// status is the status of the cluster by all that was heard.
func (h *heard) status() *clusterstatus.ClusterStatus {
	if len(h.observations) == 0 {
		return &clusterstatus.ClusterStatus{From: []string{}, Time: time.Now().UTC(), Health: clusterstatus.NoAnswer, Unreached: h.unreached, Members: []clusterstatus.MemberStatus{}}
	}
	s := clusterstatus.AssembleFor(h.procedures, time.Now().UTC(), h.observations...)
	s.Unreached = h.unreached
	if h.begun != nil {
		s.Warn(*h.begun)
	}
	return s
}

// answered tells whether a server answered, though not what was asked: then others would not
// either.
func answered(err error) bool {
	var refusal *refusalError
	return errors.As(err, &refusal) && refusal.status < http.StatusInternalServerError
}

// askAll asks addresses, all at once, and adds what they say.
func (h *heard) askAll(ctx context.Context, addresses []string, timeout time.Duration) []error {
	var mu sync.Mutex
	var errs []error
	var asking sync.WaitGroup
	for _, address := range addresses {
		asking.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, &noAnswerError{timeout})
			defer cancel()
			o, err := observation(ctx, h.config, address)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				h.unreached = append(h.unreached, clusterstatus.Unreached{Address: address, Error: inner(err).Error()})
				return
			}
			if len(h.observations) == 0 || o.Cluster == h.observations[0].Cluster {
				h.observations = append(h.observations, o)
				h.at[o.From] = cmp.Or(h.at[o.From], address)
				return
			}
			h.unreached = append(h.unreached, clusterstatus.Unreached{Address: address, Error: fmt.Sprintf("it belongs to another cluster, %s", o.Cluster)})
		})
	}
	asking.Wait()
	slices.SortFunc(h.unreached, func(a, b clusterstatus.Unreached) int { return cmp.Compare(a.Address, b.Address) })
	return errs
}

// inner is the error of a request without the request, which is known.
func inner(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// missing are the addresses of the servers of which nothing is known so far.
func (h *heard) missing() []string {
	s := clusterstatus.Assemble(time.Now(), h.observations...)
	var out []string
	for _, m := range s.Members {
		if m.Role == "server" && m.Store == nil && m.API != "" && !slices.Contains(s.From, m.Name) {
			out = append(out, "https://"+m.API)
		}
	}
	return out
}

// known are the addresses of servers that this machine knows of, beside the kubeconfig's.
func (a *asker) known() []string {
	var out []string
	for _, s := range enroll.KnownServers(a.dataDir) {
		out = append(out, "https://"+s)
	}
	path, err := findKubeconfig(a.kubeconfig)
	if err != nil {
		return out
	}
	if plan, err := devcluster.Load(filepath.Dir(path)); err == nil {
		for _, s := range plan.Servers() {
			out = append(out, "https://"+s)
		}
	}
	return out
}

func serverURL(address string) (string, error) {
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

// observation asks one server.
func observation(ctx context.Context, config *rest.Config, address string) (*clusterstatus.Observation, error) {
	o := new(clusterstatus.Observation)
	if err := getJSON(ctx, config, address, clusterstatus.StatusPath+"?form="+clusterstatus.FormObservation, o); err != nil {
		return nil, fmt.Errorf("ask %s for the cluster's status: %w", address, err)
	}
	return o, nil
}

// refusalError is returned when a server answered, and did not do what it was asked for.
type refusalError struct {
	status int
	reason string
}

func (e *refusalError) Error() string {
	return fmt.Sprintf("the server answers %d: %s", e.status, e.reason)
}

// getJSON asks a server, with the identity of the kubeconfig, for something.
func getJSON(ctx context.Context, config *rest.Config, address, path string, into any) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	client.Timeout = 0 // the context has one
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", rest.DefaultKubernetesUserAgent())
	response, err := client.Do(r)
	if err != nil {
		return because(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return refusal(response)
	}
	return because(ctx, json.NewDecoder(response.Body).Decode(into))
}

// because tells why a request was given up, where it is this side that did.
func because(ctx context.Context, err error) error {
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
		return &refusalError{r.StatusCode, strings.TrimSpace(string(text))}
	}
	return refusedBy(&metav1.Status{Code: int32(r.StatusCode), Message: status.Message + status.Error, Details: status.Details})
}

// rightsAdvice tells where to get what a request was refused for want of; empty when that is not
// why it failed.
func rightsAdvice(config *rest.Config, err error) string {
	var refused *refusalError
	status := 0
	if errors.As(err, &refused) {
		status = refused.status
	}
	switch {
	case status == http.StatusUnauthorized, apierrors.IsUnauthorized(err):
		return whyUnauthorized(config)
	case status == http.StatusForbidden, apierrors.IsForbidden(err):
		return "ask an administrator, whose kubeconfig is DATA-DIR/admin.kubeconfig on each server"
	}
	return ""
}

// withAdvice adds to the error of a request what a user can do about it.
func withAdvice(config *rest.Config, err error) error {
	if err == nil {
		return nil
	}
	if advice := rightsAdvice(config, err); advice != "" {
		return fmt.Errorf("%w; %s", err, advice)
	}
	var refused *refusalError
	var away *net.OpError
	switch {
	case errors.As(err, &refused) && refused.status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w; `barque cluster status` tells why, and what to do", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w; `barque cluster status` tells whether the cluster has a leader, without which nothing is read or written", err)
	case errors.As(err, &away) && away.Op == "dial":
		return fmt.Errorf("%w; `barque cluster status --server ADDRESS` asks another server who lives, and a kubeconfig with the address of one leads there", err)
	}
	return err
}

// nobodyAnswers says who was asked, and what can be done.
func nobodyAnswers(config *rest.Config, errs []error, h *heard) error {
	err := errors.Join(errs...)
	var refused *refusalError
	if errors.As(err, &refused) {
		if advice := rightsAdvice(config, err); advice != "" {
			err = fmt.Errorf("%w; %s", err, advice)
		}
		return err // the other advice is to ask for what was just asked for
	}
	here, where := "", "on the servers themselves"
	if h.procedures.Here {
		where = "here"
	}
	if h.begun != nil {
		here = fmt.Sprintf(". And %s: %s", h.begun.Text, h.begun.Mend)
	}
	return &exitError{exitNoAnswer, fmt.Errorf("no server answers: %w; give the address of another one with --server, and look %s: %s%s", err, where, h.procedures.Any, here)}
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
			return fmt.Sprintf("the certificate of %q in the kubeconfig ended at %s: %s", cert.Subject.CommonName, cert.NotAfter.UTC().Format(time.RFC3339), fresh)
		}
	}
	return "the kubeconfig's identity is not known there: " + fresh
}
