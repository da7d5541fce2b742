package kubeapiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// actor is a kube-controller-manager or a kube-scheduler.
type actor struct {
	program string
	args    []string
	process *process
}

// requestsPerSecond is the rate that the actors may reach. By default they hold themselves back, to
// 20 and 50 requests a second: with that, a benchmark would measure these two figures.
const requestsPerSecond = 5000

// schedulerConfig is a KubeSchedulerConfiguration. All else is as upstream has it.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q, qps: %d, burst: %[2]d}
leaderElection: {leaderElect: true}
profiles: [{schedulerName: %[3]q}]
`

// addActors prepares the controller manager and the scheduler of a server. The scheduler takes the
// pods that ask for it by name.
func (s *Server) addActors(bin, scheduler string, client tls.Certificate, controllers ...string) error {
	kubeconfig, err := s.kubeconfig(client)
	if err != nil {
		return err
	}
	config := filepath.Join(s.work, "scheduler.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, schedulerConfig, kubeconfig, requestsPerSecond, scheduler),
		0o600); err != nil {
		return err
	}
	rate := fmt.Sprint(requestsPerSecond)
	s.actors = []actor{
		{program: filepath.Join(bin, "kube-controller-manager"),
			args: append([]string{"--kubeconfig", kubeconfig, "--secure-port", "0", "--leader-elect",
				"--kube-api-qps", rate, "--kube-api-burst", rate}, controllers...)},
		{program: filepath.Join(bin, "kube-scheduler"), args: []string{"--config", config, "--secure-port", "0"}},
	}
	return nil
}

// Act starts a controller manager and a scheduler that act on a server that is not upstream's. The
// cluster that it returns has them alone.
func Act(ctx context.Context, o ActOptions) (*Cluster, error) {
	bin, err := filepath.Abs(o.Bin)
	if err != nil {
		return nil, err
	}
	certs := filepath.Join(o.Work, "certs")
	if err := errors.Join(os.MkdirAll(certs, 0o700),
		os.WriteFile(filepath.Join(certs, "apiserver.crt"), o.Authority, 0o600)); err != nil {
		return nil, err
	}
	s := &Server{ctx: ctx, host: loopback, URL: o.URL, work: o.Work, client: o.Client}
	if err := s.addActors(bin, o.Scheduler, o.Certificate, o.ControllerArgs...); err != nil {
		return nil, err
	}
	c := &Cluster{Servers: []*Server{s}, Client: o.Certificate}
	if err := c.lead(); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// ActOptions say on which server upstream's controller manager and scheduler act, and how.
type ActOptions struct {
	Bin, Work      string // as in Options
	URL            string // of the server
	Authority      []byte // of the server's certificate, as PEM
	Client         *http.Client
	Certificate    tls.Certificate // of an administrator
	Scheduler      string          // its name, in pods
	ControllerArgs []string
}

func (s *Server) startActors() (err error) {
	for i := range s.actors {
		a := &s.actors[i]
		if a.process, err = s.run(a.program, a.args...); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig writes one for the administrator.
func (s *Server) kubeconfig(client tls.Certificate) (string, error) {
	key, ok := client.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return "", errors.New("the client's key is not ECDSA")
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL,
		CertificateAuthority: filepath.Join(s.work, "certs", "apiserver.crt")}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: client.Certificate[0]}),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}
	c.Contexts["c"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "c"
	path := filepath.Join(s.work, "kubeconfig")
	return path, clientcmd.WriteToFile(*c, path)
}

// leases are the Leases that the actors hold while they lead.
var leases = []string{"kube-controller-manager", "kube-scheduler"}

// lead starts the actors, those of the first server before the others, so that they lead.
func (c *Cluster) lead() error {
	first := c.Servers[0]
	var before [2]string
	for i, name := range leases {
		before[i], _ = first.holder(name) // none, at the beginning
	}
	if err := first.startActors(); err != nil {
		return err
	}
	for i, a := range first.actors {
		err := a.process.await(first.ctx, func() error {
			holder, err := first.holder(leases[i])
			if err == nil && holder == before[i] {
				err = fmt.Errorf("lease %s is still held by %s", leases[i], holder)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, s := range c.Servers[1:] {
		if err := s.startActors(); err != nil {
			return err
		}
	}
	return nil
}

// KillLeader kills all processes of the first server, as kill -9 does. Its actors lead.
func (c *Cluster) KillLeader() {
	s := c.Servers[0]
	for _, a := range s.actors {
		a.process.kill()
	}
	s.api.kill()
	s.etcd.kill()
}

// Restore starts the server that KillLeader has killed. Its actors lead again: the others are
// stopped, and started when it does.
func (c *Cluster) Restore() (err error) {
	for _, s := range c.Servers[1:] {
		for _, a := range s.actors {
			a.process.stop()
		}
	}
	s := c.Servers[0]
	if s.etcd, err = s.run(s.store, s.storeArgs...); err != nil {
		return err
	}
	s.client.CloseIdleConnections()
	if err := s.start(tls.Certificate{}); err != nil {
		return err
	}
	return c.lead()
}

// holder returns the holder of a lease, by its own name.
func (s *Server) holder(name string) (string, error) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet,
		s.URL+"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"+name, nil)
	if err != nil {
		return "", err
	}
	res, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("lease %s: %s", name, res.Status)
	}
	var lease coordinationv1.Lease
	if err := json.NewDecoder(res.Body).Decode(&lease); err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", fmt.Errorf("nobody holds lease %s", name)
	}
	return *lease.Spec.HolderIdentity, nil
}
