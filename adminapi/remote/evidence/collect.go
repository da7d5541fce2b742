package evidence

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubelet/config/v1beta1"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus/cis"
)

// Server is a server to ask: for its report through the first of the hosts that answers, and at its
// own address as a stranger.
type Server struct {
	Name    string
	Hosts   []string
	Address string // host:port of its API
}

// atOnce bounds the requests under way.
const atOnce = 8

// memberLabel marks the Nodes of members; others are foreign.
const memberLabel = "barque.io/member"

// defaultPeerPort is that of servers that do not report theirs.
const defaultPeerPort = "6444"

// Collect asks the servers, the nodes and the API. Objects are read where config leads to; each
// server is asked for its own answers. An error is about the objects.
func Collect(ctx context.Context, config *rest.Config, servers []Server) (*cis.Evidence, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(remote.Reaching(config, remote.Timeout))
	if err != nil {
		return nil, err
	}
	roots, err := rootsOf(config)
	if err != nil {
		return nil, err
	}
	e := &cis.Evidence{Servers: make([]cis.Server, len(servers))}
	var asking sync.WaitGroup
	for i, s := range servers {
		asking.Go(func() { e.Servers[i] = askServer(ctx, config, s, roots) })
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err == nil {
		e.Nodes = make([]cis.Node, len(nodes.Items))
		turns := make(chan struct{}, atOnce)
		for i := range nodes.Items {
			asking.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				e.Nodes[i] = askNode(ctx, client, &nodes.Items[i], roots)
			})
		}
		e.Objects, err = readObjects(ctx, client)
	}
	if err != nil {
		asking.Wait()
		return e, err
	}
	answers, unasked := make([]*cis.Answers, len(servers)), make([]error, len(servers))
	for i, s := range servers {
		asking.Go(func() {
			answers[i], unasked[i] = askAnswers(ctx, config, s, nodes.Items, cis.OfUsers(e.Objects.Namespaces))
		})
	}
	asking.Wait()
	for i := range e.Servers {
		if e.Servers[i].Answers = answers[i]; unasked[i] != nil {
			e.Servers[i].Unasked = unasked[i].Error()
		}
	}
	return e, nil
}

// rootsOf are the CAs that the kubeconfig trusts.
func rootsOf(config *rest.Config) (*x509.CertPool, error) {
	data := config.CAData
	if len(data) == 0 && config.CAFile != "" {
		var err error
		if data, err = os.ReadFile(config.CAFile); err != nil {
			return nil, err
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, errors.New("the kubeconfig has no CA of the cluster")
	}
	return roots, nil
}

func askServer(ctx context.Context, config *rest.Config, s Server, roots *x509.CertPool) cis.Server {
	out := cis.Server{Name: s.Name, Ports: map[int]cis.Port{}}
	query := "?" + url.Values{adminapi.RelayParameter: {s.Name}}.Encode()
	var all error
	for _, host := range s.Hosts {
		ctx, cancel := context.WithTimeoutCause(ctx, remote.Timeout, &remote.NoAnswerError{Within: remote.Timeout})
		report := new(cis.ServerReport)
		err := remote.GetJSON(ctx, config, host, cis.ReportPath+query, report)
		cancel()
		if err == nil {
			out.Report = report
			break
		}
		all = errors.Join(all, fmt.Errorf("%s: %w", host, err))
	}
	if out.Report == nil {
		out.Silent = "no address of it is known"
		if all != nil {
			out.Silent = all.Error()
		}
	}
	host, _, err := net.SplitHostPort(s.Address)
	if err != nil {
		out.API.Unreached = "no address of its API is known"
		out.Peer.Unreached = out.API.Unreached
		return out
	}
	out.API = probePort(ctx, s.Address, "/api/v1/namespaces", roots)
	peer := defaultPeerPort
	if out.Report != nil && out.Report.Flags["peer-port"] != "" {
		peer = out.Report.Flags["peer-port"]
	}
	peers := roots
	if out.Report != nil && out.Report.PeerCAs != "" {
		peers = x509.NewCertPool()
		peers.AppendCertsFromPEM([]byte(out.Report.PeerCAs))
	}
	out.Peer = probePort(ctx, net.JoinHostPort(host, peer), "", peers)
	for _, port := range []int{10257, 10259} {
		out.Ports[port] = try(ctx, host, port)
	}
	out.Profiling = profiling(ctx, config, s.Address)
	return out
}

// profiling asks for the index of profiles, as the administrator.
func profiling(ctx context.Context, config *rest.Config, address string) cis.Opened {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	// The answer is a page, so an answer that was served is one that is no JSON. Other refusals
	// than this one may be of this user, or of this moment.
	err := remote.GetJSON(ctx, config, "https://"+address, "/debug/pprof/", new(any))
	var refused *remote.RefusalError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &refused):
		return cis.Opened{Asked: refused.Status == http.StatusNotFound}
	case err == nil || errors.As(err, &syntax):
		return cis.Opened{Asked: true, Served: true}
	}
	return cis.Opened{}
}

func askNode(ctx context.Context, client kubernetes.Interface, node *corev1.Node, roots *x509.CertPool) cis.Node {
	_, member := node.Labels[memberLabel]
	out := cis.Node{Name: node.Name, Foreign: !member, OS: node.Status.NodeInfo.OperatingSystem}
	if out.Foreign {
		return out
	}
	raw, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(node.Name).SubResource("proxy").Suffix(
		"configz").DoRaw(ctx)
	var shown struct {
		Configuration *v1beta1.KubeletConfiguration `json:"kubeletconfig"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &shown)
	}
	if out.Kubelet = shown.Configuration; out.Kubelet == nil {
		out.Silent = fmt.Sprint(err)
	}
	var host string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			host = a.Address
			break
		}
	}
	if host == "" {
		out.Port.Unreached = "the Node has no address"
		return out
	}
	out.Port = probePort(ctx,
		net.JoinHostPort(host, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))),
		"/pods", roots)
	out.ReadOnly, out.Proxy = try(ctx, host, 10255), try(ctx, host, 10249)
	return out
}
