package upgrading

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/upgrade"
	"github.com/barque/barque/upgrade/part"
	"github.com/barque/barque/upgrade/release"
	"github.com/barque/barque/verify"
)

// cluster is the leader's interface to the cluster in an upgrade.
type cluster struct{ *Server }

// Nodes implements upgrade.Cluster.
func (c cluster) Nodes() (nodes []upgrade.NodeSeen) {
	for _, m := range c.Store.Members() {
		n := upgrade.NodeSeen{Name: m.Name, Role: pki.RoleServer, Voter: m.Voter}
		if g, ok := c.Pool.Member(m.Name); ok {
			n.Alive, n.Version = g.State == gossip.Alive, g.Facts.Version
		}
		nodes = append(nodes, n)
	}
	for _, name := range c.Agents() {
		n := upgrade.NodeSeen{Name: name, Role: pki.RoleAgent}
		if g, ok := c.Pool.Member(name); ok {
			n.Alive, n.Version = g.State == gossip.Alive, g.Facts.Version
		} else if of, err := c.Informers().Core().V1().Nodes().Lister().Get(name); err == nil {
			n.Version = of.Status.NodeInfo.KubeletVersion
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// Faults implements upgrade.Cluster. Its texts have no numbers, which would be others each time.
func (c cluster) Faults(ctx context.Context) (faults []string) {
	own := c.Store.Status()
	if own.Quarantined != "" {
		faults = append(faults, c.Name+" is in quarantine")
	}
	for _, p := range c.Store.PeerStatus(ctx) {
		switch s := p.Status; {
		case p.Member.Name == c.Name:
		case s == nil:
			faults = append(faults, p.Member.Name+" does not answer")
		case s.Quarantined != "":
			faults = append(faults, p.Member.Name+" is in quarantine")
		case s.Revision < own.Revision:
			faults = append(faults, p.Member.Name+" is behind the leader's revision")
		}
	}
	return faults
}

// Busy implements upgrade.Cluster.
func (c cluster) Busy() []string { return c.Rotations() }

// crashLoop is the age of a restart up to which a container counts as one that restarts by itself.
const crashLoop = 10 * time.Minute

// Containers implements upgrade.Cluster.
func (c cluster) Containers(node string, all bool) map[string]string {
	out := map[string]string{}
	pods, err := c.Informers().Core().V1().Pods().Lister().List(labels.Everything())
	if err != nil {
		c.Logger.Error("the containers of a node are not known", "node", node, "err", err)
	}
	for _, p := range pods {
		if p.Spec.NodeName != node || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded ||
			p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, s := range p.Status.ContainerStatuses {
			ended := s.LastTerminationState.Terminated
			calm := ended == nil || time.Since(ended.FinishedAt.Time) > crashLoop
			steady := s.State.Running != nil && s.Ready && calm && p.Spec.RestartPolicy == corev1.RestartPolicyAlways
			if all || steady {
				_, id, _ := strings.Cut(s.ContainerID, "://")
				key := fmt.Sprintf("%s/%s/%s (%.8s)", p.Namespace, p.Name, s.Name, p.UID)
				out[key] = fmt.Sprintf("%.12s, %d restarts", id, s.RestartCount)
			}
		}
	}
	return out
}

// Order implements upgrade.Cluster.
func (c cluster) Order(ctx context.Context, to upgrade.Node, o *part.Order) (*part.Answer, error) {
	method, body := http.MethodGet, []byte(nil)
	if o != nil {
		var err error
		if body, err = json.Marshal(o); err != nil {
			return nil, err
		}
		method = http.MethodPost
	}
	at, config, err := c.orderAddress(to)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+at+part.NodePath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	response, err := client.Do(request)
	if err != nil {
		var network *net.OpError
		if errors.As(err, &network) {
			return nil, errors.New("its port cannot be reached")
		}
		return nil, err
	}
	defer response.Body.Close()
	switch data, err := io.ReadAll(io.LimitReader(response.Body, release.MaxFile)); {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusNotFound:
		return nil, upgrade.ErrUnable
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s: %s", to.Name, response.Status, bytes.TrimSpace(data))
	default:
		answer := new(part.Answer)
		return answer, json.Unmarshal(data, answer)
	}
}

// orderAddress returns where a node takes orders, and how it is called there: a server at its API's
// port, as it may have no kubelet, and an agent at its kubelet's.
func (c cluster) orderAddress(to upgrade.Node) (string, *tls.Config, error) {
	m, ok := c.Pool.Member(to.Name)
	if !ok {
		return "", nil, errors.New("gossip does not know it")
	}
	if to.Role == pki.RoleServer {
		return netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort).String(), c.IDs.CallTLS(), nil
	}
	of, err := c.Informers().Core().V1().Nodes().Lister().Get(to.Name)
	if err != nil {
		return "", nil, err
	}
	port := strconv.Itoa(int(of.Status.DaemonEndpoints.KubeletEndpoint.Port))
	return net.JoinHostPort(m.Addr.Addr().String(), port), c.IDs.KubeletTLS()(to.Name), nil
}

// HandOver implements upgrade.Cluster.
func (c cluster) HandOver(ctx context.Context, to string) error {
	for _, m := range c.Store.Members() {
		if m.Name == to {
			return c.Store.TransferLeadership(ctx, m.ID)
		}
	}
	return fmt.Errorf("%s is no member of the store", to)
}

// Verify implements upgrade.Cluster, with the administrator's kubeconfig of this server: it counts
// at all servers.
func (c cluster) Verify(ctx context.Context, during time.Duration) (problem string, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.DataDir, "admin.kubeconfig"))
	if err != nil {
		return "", err
	}
	config.QPS, config.Burst = -1, 0
	report, err := verify.Cluster(ctx, verify.Options{Config: config, Duration: during})
	if report != nil {
		for _, check := range report.Checks {
			if len(check.Problems) > 0 {
				return check.Name + ": " + check.Problems[0], nil
			}
		}
	}
	if err == nil && report.Unjudged() {
		for _, check := range report.Checks {
			if len(check.Unjudged) > 0 {
				return "", fmt.Errorf("%s: %s", check.Name, check.Unjudged[0])
			}
		}
	}
	return "", err
}

// Release implements upgrade.Cluster.
func (c cluster) Release(ctx context.Context, spec *upgrade.Spec) (*upgrade.Files, error) {
	releases := part.ReleasesIn(c.DataDir)
	upload := &part.Upload{Self: c.Name, Releases: releases, Keys: c.ReleaseKeys}
	if spec.URL != "" {
		files, err := upload.Bring(ctx, spec.URL, spec.Version)
		if err != nil {
			return nil, err
		}
		return c.believe(upload, spec, files[0], files[1])
	}
	sums, err := releases.Read(spec.Version, release.SumsFile)
	if err != nil {
		return nil, err
	}
	signature, err := releases.Read(spec.Version, release.SignatureFile)
	if err != nil {
		return nil, err
	}
	if sums != nil && (spec.Checksum == "" || release.Digest(sums) == spec.Checksum) {
		return c.believe(upload, spec, sums, signature)
	}
	client := archiveClient(c.IDs.CallTLS())
	for _, from := range c.From(pki.RoleServer) {
		sums, err := part.FetchSmall(ctx, client, from, spec.Version, release.SumsFile)
		if err != nil || spec.Checksum != "" && release.Digest(sums) != spec.Checksum {
			continue // it has not got it
		}
		signature, err := part.FetchSmall(ctx, client, from, spec.Version, release.SignatureFile)
		if err != nil {
			continue
		}
		return c.believe(upload, spec, sums, signature)
	}
	return nil, fmt.Errorf("no server has the release %s; `barque upgrade --to` brings it", spec.Version)
}

// believe verifies the files of a release by this server's keys.
func (c cluster) believe(
	upload *part.Upload, spec *upgrade.Spec, sums, signature []byte,
) (*upgrade.Files, error) {
	rel, err := upload.Verify(&part.Offer{Sums: sums, Signature: signature, Unsigned: spec.Unsigned})
	if err == nil && rel.Version != spec.Version {
		err = fmt.Errorf("the release is of version %s", rel.Version)
	}
	if err == nil && spec.Checksum != "" && release.Digest(sums) != spec.Checksum {
		err = errors.New("the release has another checksum than the Upgrade")
	}
	if err != nil {
		return nil, &part.LastingError{Err: err}
	}
	for _, arch := range c.Architectures() {
		if rel.Archives[arch] == "" {
			return nil, &part.LastingError{
				Err: fmt.Errorf("the release has no archive for %s, which nodes of this cluster need", arch)}
		}
	}
	return &upgrade.Files{Sums: sums, Signature: signature}, nil
}

// From implements upgrade.Cluster.
func (c cluster) From(role string) (urls []string) {
	path := part.FilesPath
	if role == pki.RoleAgent {
		path = part.AgentsPath
	}
	for _, m := range c.Pool.Members() {
		if m.Role == pki.RoleServer && m.State == gossip.Alive {
			urls = append(urls, "https://"+netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort).String()+path)
		}
	}
	slices.Sort(urls)
	return urls
}

// Architectures implements upgrade.Cluster.
func (c cluster) Architectures() (all []string) {
	nodes, err := c.Informers().Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		c.Logger.Error("the architectures of the nodes are not known", "err", err)
	}
	names := c.Agents()
	for _, n := range nodes {
		arch, member := n.Status.NodeInfo.Architecture, c.IsServer(n.Name) || slices.Contains(names, n.Name)
		if arch != "" && member {
			all = append(all, arch)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Keys implements upgrade.Cluster.
func (c cluster) Keys() []string { return c.ReleaseKeys.Texts() }

// Audit implements upgrade.Cluster.
func (c cluster) Audit(annotations map[string]string) { c.Record(part.NodePath, annotations) }
