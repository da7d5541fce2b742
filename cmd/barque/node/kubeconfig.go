package node

import (
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// writeAdminKubeconfig writes the administrator's kubeconfig with a fresh certificate. Each start
// of a server does, so it never ends while the server is looked after.
func writeAdminKubeconfig(o *Options, ids *serverIdentities) error {
	certPEM, err := ids.ca.Issue(pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client}, ids.admin.Public(), time.Now())
	if err != nil {
		return err
	}
	keyPEM, err := pki.MarshalKey(ids.admin)
	if err != nil {
		return err
	}
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"barque": {Server: fmt.Sprintf("https://127.0.0.1:%d", o.APIPort), CertificateAuthorityData: ids.ca.PEM()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"barque:admin": {ClientCertificateData: certPEM, ClientKeyData: keyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{"barque": {Cluster: "barque", AuthInfo: "barque:admin"}},
		CurrentContext: "barque",
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(o.DataDir, "admin.kubeconfig"), data, 0o600)
}
