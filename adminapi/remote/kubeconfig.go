package remote

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// LoadConfig reads the configuration of a client from a kubeconfig, or from a list of them, as
// $KUBECONFIG may have.
func LoadConfig(path string) (*rest.Config, error) {
	// clientcmd takes a missing file for an empty one.
	if !slices.ContainsFunc(filepath.SplitList(path), mayExist) {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, os.ErrNotExist)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(path)}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return config, nil
}

func mayExist(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// NewClient returns a client for commands. It fails soon if there is no route to the server.
func NewClient(config *rest.Config) (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(Reaching(config, config.Timeout))
}
