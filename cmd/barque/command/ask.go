package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus/ask"
)

// Asker are the flags of commands that ask servers about the cluster.
type Asker struct {
	Kubeconfig string
	Servers    []string // addresses of API servers, instead of the kubeconfig's
	DataDir    string   // of the server on this machine, whose record has the others' addresses
	Timeout    time.Duration
}

// AddAskerFlags adds them.
func AddAskerFlags(c *cobra.Command) *Asker {
	a := new(Asker)
	c.Flags().StringVar(&a.Kubeconfig, "kubeconfig", "", KubeconfigHelp)
	c.Flags().StringSliceVar(&a.Servers, "server", nil,
		"address of a server to ask instead of the kubeconfig's, HOST[:6443]; may be repeated")
	c.Flags().StringVar(&a.DataDir, "data-dir", DefaultDataDir,
		"data directory of the server on this machine; its kubeconfig and the recorded addresses are used when no other server answers")
	c.Flags().DurationVar(&a.Timeout, "timeout", 5*time.Second, "how long a server is waited for")
	return a
}

// Check validates the timeout and the addresses of servers.
func (a *Asker) Check(c *cobra.Command) error {
	if a.Timeout <= 0 {
		return Usage(c, fmt.Errorf("--timeout %s: want how long, such as 5s", a.Timeout))
	}
	for i, s := range a.Servers {
		address, err := remote.ServerURL(s)
		if err != nil {
			return Usage(c, fmt.Errorf("--server %q: %w", s, err))
		}
		a.Servers[i] = address
	}
	return nil
}

// Config is the client's configuration: the kubeconfig's, or that of the server on this machine.
func (a *Asker) Config() (*rest.Config, error) {
	config, err := ClientConfig(a.Kubeconfig)
	if err == nil || a.Kubeconfig != "" || os.Getenv("KUBECONFIG") != "" {
		return config, err
	}
	local := filepath.Join(a.DataDir, "admin.kubeconfig")
	if _, statErr := os.Stat(local); statErr != nil {
		return nil, err
	}
	return ClientConfig(local)
}

// Asks returns what asks by the flags.
func (a *Asker) Asks() *ask.Asker {
	return &ask.Asker{Config: a.Config, Kubeconfig: func() (string, error) { return FindKubeconfig(a.Kubeconfig) },
		Servers: a.Servers, DataDir: a.DataDir, Timeout: a.Timeout}
}

// Ask asks the servers.
func (a *Asker) Ask(ctx context.Context) (*ask.Heard, error) { return a.Asks().Ask(ctx) }
