package users

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/barque/barque/internal/atomicfile"
)

// Cluster is where a user's kubeconfig leads.
type Cluster struct {
	Server string // https://HOST:PORT
	CA     []byte // PEM
}

// ClusterOf returns the cluster of an administrator's configuration. server replaces its address if
// it is not empty.
func ClusterOf(config *rest.Config, server string) (Cluster, error) {
	c := Cluster{Server: config.Host, CA: config.CAData}
	if server != "" {
		c.Server = server
	}
	u, err := url.Parse(c.Server)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return c, fmt.Errorf("the server's address %q: want https://HOST:PORT; give it with --server", c.Server)
	}
	if len(c.CA) == 0 && config.CAFile != "" {
		if c.CA, err = os.ReadFile(config.CAFile); err != nil {
			return c, fmt.Errorf("the cluster's CA: %w", err)
		}
	}
	return c, nil
}

// IsLocal reports whether the address is of the machine that uses it.
func (c Cluster) IsLocal() bool {
	u, err := url.Parse(c.Server)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return err == nil && addr.IsLoopback() || u.Hostname() == "localhost"
}

// name of the cluster in a kubeconfig that may have others.
func (c Cluster) name() string {
	u, err := url.Parse(c.Server)
	if err != nil {
		return "barque"
	}
	return "barque-" + u.Host
}

// add puts the user into a kubeconfig, and returns the name of the context.
func (m *Made) add(to *clientcmdapi.Config, c Cluster) string {
	cluster := c.name()
	context := m.Name + "@" + cluster
	to.Clusters[cluster] = &clientcmdapi.Cluster{Server: c.Server, CertificateAuthorityData: c.CA}
	to.AuthInfos[context] = &clientcmdapi.AuthInfo{ClientCertificateData: m.Certificate, ClientKeyData: m.Key}
	to.Contexts[context] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: context}
	if to.CurrentContext == "" {
		to.CurrentContext = context
	}
	return context
}

// Kubeconfig returns a kubeconfig for the user.
func (m *Made) Kubeconfig(c Cluster) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	m.add(config, c)
	return clientcmd.Write(*config)
}

// Merge adds the user to a kubeconfig file, which it makes if needed, and returns the name of the
// context. Without a current context, the new one becomes current.
func (m *Made) Merge(path string, c Cluster) (string, error) {
	config, err := clientcmd.LoadFromFile(path)
	if os.IsNotExist(err) {
		config, err = clientcmdapi.NewConfig(), os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	context := m.add(config, c)
	data, err := clientcmd.Write(*config)
	if err != nil {
		return "", err
	}
	return context, atomicfile.Write(path, data, 0o600)
}
