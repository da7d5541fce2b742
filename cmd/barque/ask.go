package main

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

// asker are the flags of commands that ask servers about the cluster.
type asker struct {
	kubeconfig string
	servers    []string // addresses of API servers, instead of the kubeconfig's
	dataDir    string   // of the server on this machine, whose record has the others' addresses
	timeout    time.Duration
}

func addAskerFlags(c *cobra.Command) *asker {
	a := new(asker)
	c.Flags().StringVar(&a.kubeconfig, "kubeconfig", "", kubeconfigHelp)
	c.Flags().StringSliceVar(&a.servers, "server", nil,
		"address of a server to ask instead of the kubeconfig's, HOST[:6443]; may be repeated")
	c.Flags().StringVar(&a.dataDir, "data-dir", defaultDataDir,
		"data directory of the server on this machine; its kubeconfig and the recorded addresses are used when no other server answers")
	c.Flags().DurationVar(&a.timeout, "timeout", 5*time.Second, "how long a server is waited for")
	return a
}

// check validates the timeout and the addresses of servers.
func (a *asker) check(c *cobra.Command) error {
	if a.timeout <= 0 {
		return usage(c, fmt.Errorf("--timeout %s: want how long, such as 5s", a.timeout))
	}
	for i, s := range a.servers {
		address, err := remote.ServerURL(s)
		if err != nil {
			return usage(c, fmt.Errorf("--server %q: %w", s, err))
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

// asks asks by the flags.
func (a *asker) asks() *ask.Asker {
	return &ask.Asker{Config: a.config, Kubeconfig: func() (string, error) { return findKubeconfig(a.kubeconfig) },
		Servers: a.servers, DataDir: a.dataDir, Timeout: a.timeout}
}

func (a *asker) ask(ctx context.Context) (*ask.Heard, error) { return a.asks().Ask(ctx) }
