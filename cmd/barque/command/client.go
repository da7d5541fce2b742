package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/devcluster"
)

// DefaultDataDir is where a node keeps its data.
const DefaultDataDir = "/var/lib/barque"

// KubeconfigHelp is the help of --kubeconfig.
const KubeconfigHelp = "kubeconfig of the cluster's administrator (default: $KUBECONFIG, .barque/kubeconfig, or the one of the server on this machine)"

// KubeconfigFlag adds --kubeconfig and returns where its value will be.
func KubeconfigFlag(c *cobra.Command) *string {
	path := new(string)
	c.Flags().StringVar(path, "kubeconfig", "", KubeconfigHelp)
	return path
}

// FindKubeconfig returns the first kubeconfig of: the one given, $KUBECONFIG, the dev cluster's in
// this directory, this machine's server's.
func FindKubeconfig(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	if env := os.Getenv("KUBECONFIG"); env != "" {
		return env, nil
	}
	for _, path := range []string{filepath.Join(devcluster.DefaultDir, "kubeconfig"),
		filepath.Join(DefaultDataDir, "admin.kubeconfig")} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if errors.Is(err, os.ErrPermission) {
			return "", fmt.Errorf("%s cannot be read by this user; run this as root", path)
		}
	}
	return "",
		errors.New(
			"no kubeconfig found: give --kubeconfig, set KUBECONFIG, or run this where `barque dev up` or a server was started")
}

// ClientConfig is the configuration of a client by --kubeconfig.
func ClientConfig(given string) (*rest.Config, error) {
	path, err := FindKubeconfig(given)
	if err != nil {
		return nil, err
	}
	return remote.LoadConfig(path)
}

// NewClient makes a client by --kubeconfig.
func NewClient(given string) (*kubernetes.Clientset, *rest.Config, error) {
	config, err := ClientConfig(given)
	if err != nil {
		return nil, nil, err
	}
	client, err := remote.NewClient(config)
	return client, config, err
}

// DevCopyOf is the kubeconfig that a command uses, if it is one of a dev cluster.
func DevCopyOf(c *cobra.Command, given string) *devcluster.Copy {
	path, err := FindKubeconfig(given)
	if err != nil {
		return new(devcluster.Copy)
	}
	return devcluster.CopyAt(path, Teller(c))
}
