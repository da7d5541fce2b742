package devcluster

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// RenewKubeconfig gets the administrator's identity from a running server: servers renew it in
// time, and after an exchange of the CA the old one is void. A stopped server has an old one.
func (p *Plan) RenewKubeconfig() error {
	var newest *Node
	var written time.Time
	var missing error
	for _, n := range p.servers() {
		info, err := os.Stat(p.nodeKubeconfig(n))
		if err != nil {
			missing = errors.Join(missing, err)
			continue
		}
		if newest == nil || info.ModTime().After(written) {
			newest, written = n, info.ModTime()
		}
	}
	if newest == nil {
		return fmt.Errorf("no server has a kubeconfig: %w", missing)
	}
	return p.writeKubeconfig(newest)
}

// writeKubeconfig writes the admin's kubeconfig of the server for the proxy's address.
func (p *Plan) writeKubeconfig(n *Node) error {
	config, err := clientcmd.LoadFromFile(p.nodeKubeconfig(n))
	if err != nil {
		return err
	}
	for _, c := range config.Clusters {
		c.Server = fmt.Sprintf("https://127.0.0.1:%d", p.APIPort)
	}
	return clientcmd.WriteToFile(*config, p.Kubeconfig())
}

// GiveToSudoer gives a file to the user that called sudo, if there is one: that user types kubectl
// next.
func GiveToSudoer(path string, getenv func(string) string, chown func(path string, uid, gid int) error) error {
	if getenv("SUDO_UID") == "" {
		return nil
	}
	uid, err := strconv.Atoi(getenv("SUDO_UID"))
	if err != nil {
		return fmt.Errorf("SUDO_UID: %w", err)
	}
	gid, err := strconv.Atoi(getenv("SUDO_GID"))
	if err != nil {
		return fmt.Errorf("SUDO_GID: %w", err)
	}
	return chown(path, uid, gid)
}
