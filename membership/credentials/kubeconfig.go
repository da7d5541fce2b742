package credentials

import (
	"crypto"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// writeAdminKubeconfig writes the administrator's kubeconfig. A server writes it after its start
// and after each renewal of its certificates, so it never expires while the server runs.
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
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"barque": {Server: fmt.Sprintf("https://127.0.0.1:%d", ids.config.APIPort), CertificateAuthorityData: ids.Trust.PEM()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"barque:admin": {ClientCertificateData: pki.ChainPEM(cert), ClientKeyData: keyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{"barque": {Cluster: "barque", AuthInfo: "barque:admin"}},
		CurrentContext: "barque",
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		return err
	}
	return atomicfile.Write(KubeconfigPath(ids.config.DataDir), data, 0o600)
}

// KubeconfigPath is where the administrator's kubeconfig is.
func KubeconfigPath(dataDir string) string { return filepath.Join(dataDir, "admin.kubeconfig") }
