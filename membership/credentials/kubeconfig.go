package credentials

import (
	"crypto"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// writeAdminKubeconfig writes the administrator's kubeconfig. A server writes it after its start
// and after each renewal of its certificates, so it never expires while the server runs. It leads
// to the API's own address where there is one, so that it may be copied to any machine. The context
// `local` leads to this server, for the time without a leader.
func (ids *Server) writeAdminKubeconfig() error {
	cert := ids.admin.Certificate()
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return fmt.Errorf("the administrator's key of type %T cannot be written", cert.PrivateKey)
	}
	keyPEM, err := pki.MarshalKey(key)
	if err != nil {
		return err
	}
	cluster := func(host string) *clientcmdapi.Cluster {
		address := net.JoinHostPort(host, strconv.Itoa(int(ids.config.APIPort)))
		return &clientcmdapi.Cluster{Server: "https://" + address, CertificateAuthorityData: ids.Trust.PEM()}
	}
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"barque": cluster("127.0.0.1")},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"barque:admin": {ClientCertificateData: pki.ChainPEM(cert), ClientKeyData: keyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{"barque": {Cluster: "barque", AuthInfo: "barque:admin"}},
		CurrentContext: "barque",
	}
	if own := ids.config.APIAddress; own.IsValid() {
		config.Clusters["barque-local"], config.Clusters["barque"] = config.Clusters["barque"], cluster(own.String())
		config.Contexts["local"] = &clientcmdapi.Context{Cluster: "barque-local", AuthInfo: "barque:admin"}
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		return err
	}
	return atomicfile.Write(KubeconfigPath(ids.config.DataDir), data, 0o600)
}

// KubeconfigPath is where the administrator's kubeconfig is.
func KubeconfigPath(dataDir string) string { return filepath.Join(dataDir, "admin.kubeconfig") }
