package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/devcluster"
)

const defaultDataDir = "/var/lib/barque"

const kubeconfigHelp = "kubeconfig of the cluster's administrator (default: $KUBECONFIG, .barque/kubeconfig, or the one of the server on this machine)"

// kubeconfigFlag adds --kubeconfig and returns where its value will be.
func kubeconfigFlag(c *cobra.Command) *string {
	path := new(string)
	c.Flags().StringVar(path, "kubeconfig", "", kubeconfigHelp)
	return path
}

// findKubeconfig returns the first kubeconfig of: the one given, $KUBECONFIG, the dev cluster's in
// this directory, this machine's server's.
func findKubeconfig(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	if env := os.Getenv("KUBECONFIG"); env != "" {
		return env, nil
	}
	for _, path := range []string{filepath.Join(devcluster.DefaultDir, "kubeconfig"), filepath.Join(defaultDataDir, "admin.kubeconfig")} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if errors.Is(err, os.ErrPermission) {
			return "", fmt.Errorf("%s cannot be read by this user; run this as root", path)
		}
	}
	return "", errors.New("no kubeconfig found: give --kubeconfig, set KUBECONFIG, or run this where `barque dev up` or a server was started")
}

func clientConfig(given string) (*rest.Config, error) {
	path, err := findKubeconfig(given)
	if err != nil {
		return nil, err
	}
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

// said is the error of a raw request whose answer was data. client-go does not look for the reason
// in it, and calls it unknown.
func said(data []byte, err error) error {
	var status metav1.Status
	if err == nil || json.Unmarshal(data, &status) != nil || status.Message == "" {
		return err
	}
	return refusedBy(&status)
}

// apiTimeout bounds what is asked of the API. A server that lives has answered by then, also one
// that has just lost its leader: it gives a request up when there has been none for
// raftstore.LeaderlessAfter.
const apiTimeout = 15 * time.Second

// noAnswerError is returned when a server was waited for in vain. It is a context.DeadlineExceeded.
type noAnswerError struct{ within time.Duration }

func (e *noAnswerError) Error() string { return fmt.Sprintf("no answer within %s", e.within) }
func (e *noAnswerError) Unwrap() error { return context.DeadlineExceeded }

// askAPI calls f with a context that ends after apiTimeout. The error says what a user can do.
func askAPI(ctx context.Context, config *rest.Config, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, apiTimeout, &noAnswerError{apiTimeout})
	defer cancel()
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%s: ask %s: %w", what, config.Host, context.Cause(ctx))
	}
	return withAdvice(config, withoutLeader(err))
}

// unsent tells whether a request that has failed never reached a server: there was no connection,
// or it was to nobody who is trusted.
func unsent(err error) bool {
	var network *net.OpError
	var untrusted *tls.CertificateVerificationError
	return errors.As(err, &network) && network.Op == "dial" || errors.As(err, &untrusted) || errors.Is(err, syscall.ECONNREFUSED)
}

// maybeDone tells whether a request that changes something may have done so, though it failed: the
// server says that it does not know, or its answer did not come.
func maybeDone(err error) bool {
	status := statusOf(err)
	return err != nil && (status == http.StatusGatewayTimeout || status == 0 && !unsent(err))
}

// dialPatience is how long a machine that is off is waited for. It is shorter than the time for any
// answer, so that it is known that nothing was sent.
const dialPatience = 5 * time.Second

// reaching returns the configuration for requests that are answered within a time (0: any), and
// that are given up sooner when there is no way to the server.
func reaching(config *rest.Config, within time.Duration) *rest.Config {
	config = rest.CopyConfig(config)
	config.Timeout = within
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialPatience}).DialContext
	}
	return config
}

// once returns a client for one request that is to be answered within a time, and what ends its
// connection. client-go keeps a transport for each Dial that it is given, and its connections: a
// command that asks again and again would leave one behind with every question.
func once(config *rest.Config, within time.Duration) (client rest.Interface, end func(), err error) {
	config = reaching(config, within)
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

func newClient(given string) (*kubernetes.Clientset, *rest.Config, error) {
	config, err := clientConfig(given)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(reaching(config, config.Timeout))
	return client, config, err
}
