package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/exitcode"
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
		address, err := remote.ServerURL(s)
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
	var refusal *remote.RefusalError
	return errors.As(err, &refusal) && refusal.Status < http.StatusInternalServerError
}

// askAll asks addresses, all at once, and adds what they say.
func (h *heard) askAll(ctx context.Context, addresses []string, timeout time.Duration) []error {
	var mu sync.Mutex
	var errs []error
	var asking sync.WaitGroup
	for _, address := range addresses {
		asking.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, &remote.NoAnswerError{Within: timeout})
			defer cancel()
			o, err := remote.Observation(ctx, h.config, address)
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

// nobodyAnswers says who was asked, and what can be done.
func nobodyAnswers(config *rest.Config, errs []error, h *heard) error {
	err := errors.Join(errs...)
	var refused *remote.RefusalError
	if errors.As(err, &refused) {
		if advice := remote.RightsAdvice(config, err); advice != "" {
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
	return &exitcode.Error{Code: exitcode.NoAnswer, Err: fmt.Errorf("no server answers: %w; give the address of another one with --server, and look %s: %s%s", err, where, h.procedures.Any, here)}
}
