// Package release runs Helm in this process.
//
// Helm's functions take no context, or run on in the background when theirs ends. So their clients
// end requests with the term (controllers/runtime.Fenced), and a function returns soon after that.
// What it had begun is in its record, as pending.
package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chartcommon "helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	releaser "helm.sh/helm/v4/pkg/release"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"
)

// Statuses of records that decide the next step.
const (
	Deployed     = string(common.StatusDeployed)
	Failed       = string(common.StatusFailed)
	Uninstalling = string(common.StatusUninstalling)
)

// digestLabel is the label of a record with the digest of what was asked for.
const digestLabel = "barque.io/helmchart-digest"

// interrupted begins the description of a record whose operation was interrupted.
const interrupted = "Interrupted: "

// MaxDecompressed bounds the files of a chart, in bytes.
const MaxDecompressed = 32 << 20

// history is how many records of a release are kept.
const history = 10

// State is the last record of a release.
type State struct {
	Exists      bool
	Revision    int
	Status      string
	Pending     bool // an operation was begun and has no end
	Interrupted bool // it failed by an interruption alone
	HasDeployed bool // an earlier revision is deployed
	Digest      string
	Chart       string // name and version
	Description string
}

// Place is where a release is.
type Place struct {
	Namespace, Name string
	Driver          string // secret or configmap
}

// Order is what a release is to be.
type Order struct {
	Place
	Chart                                          *chart.Chart
	Values                                         map[string]any
	Digest                                         string
	Timeout                                        time.Duration
	CreateNamespace, TakeOwnership, ForceConflicts bool
	ServerSide                                     string // true, false, auto or empty
}

// Helm runs operations for one term.
type Helm struct {
	config *rest.Config
	logger *slog.Logger
	lead   context.Context // waits end with it
}

var once sync.Once

// New returns Helm with the clients of a term.
func New(lead context.Context, config *rest.Config, logger *slog.Logger) *Helm {
	once.Do(func() {
		// The helm command has this name too: who changes a release by it is no other manager.
		kube.ManagedFieldsManager = "helm"
		archive.MaxDecompressedChartSize = MaxDecompressed
	})
	return &Helm{config: config, logger: logger, lead: lead}
}

// Load reads an archive, and checks that it can be installed.
func Load(data []byte) (*chart.Chart, error) {
	c, err := loader.LoadArchive(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read the chart: %w", err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("the chart is invalid: %w", err)
	}
	if t := c.Metadata.Type; t != "" && t != "application" {
		return nil, fmt.Errorf("a chart of type %s cannot be installed", t)
	}
	var needs []chartcommon.Dependency
	for _, d := range c.Metadata.Dependencies {
		needs = append(needs, d)
	}
	if err := action.CheckDependencies(c, needs); err != nil {
		return nil, fmt.Errorf("the archive lacks charts that it depends on, so run `helm dependency build` "+
			"before `helm package`: %w", err)
	}
	return c, nil
}

// configuration makes Helm's configuration for one operation: what the API serves is asked anew.
func (h *Helm) configuration(at Place) (*action.Configuration, error) {
	c := action.NewConfiguration(action.ConfigurationSetLogger(h.logger.Handler()))
	if err := c.Init(&getter{config: h.config, namespace: at.Namespace}, at.Namespace, at.Driver); err != nil {
		return nil, fmt.Errorf("set up Helm: %w", err)
	}
	c.Releases.MaxHistory = history // also of installs that fail again and again
	return c, nil
}

// State reads the last record of a release.
func (h *Helm) State(at Place) (State, error) {
	c, err := h.configuration(at)
	if err != nil {
		return State{}, err
	}
	last, err := lastOf(c, at.Name)
	if err != nil || last == nil {
		return State{}, err
	}
	return stateOf(c, last)
}

func lastOf(c *action.Configuration, name string) (*helmrelease.Release, error) {
	found, err := c.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of release %s: %w", name, err)
	}
	return typed(found)
}

func typed(r releaser.Releaser) (*helmrelease.Release, error) {
	switch r := r.(type) {
	case *helmrelease.Release:
		return r, nil
	case helmrelease.Release:
		return &r, nil
	}
	return nil, fmt.Errorf("a record of an unknown kind, %T", r)
}

func stateOf(c *action.Configuration, r *helmrelease.Release) (State, error) {
	s := State{Exists: true, Revision: r.Version, Digest: r.Labels[digestLabel]}
	if r.Info != nil {
		s.Status, s.Pending = r.Info.Status.String(), r.Info.Status.IsPending()
		s.Description = r.Info.Description
		s.Interrupted = strings.HasPrefix(r.Info.Description, interrupted)
	}
	if r.Chart != nil && r.Chart.Metadata != nil {
		s.Chart = r.Chart.Metadata.Name + "-" + r.Chart.Metadata.Version
	}
	_, err := c.Releases.Deployed(r.Name)
	switch {
	case err == nil:
		s.HasDeployed = true
	case !errors.Is(err, driver.ErrNoDeployedReleases) && !errors.Is(err, driver.ErrReleaseNotFound):
		return State{}, fmt.Errorf("read the records of release %s: %w", r.Name, err)
	}
	return s, nil
}

// Interrupt marks the last operation as failed by an interruption. It changes no object but the
// record.
func (h *Helm) Interrupt(at Place, why string) error {
	c, err := h.configuration(at)
	if err != nil {
		return err
	}
	last, err := lastOf(c, at.Name)
	if err != nil || last == nil || last.Info == nil {
		return err
	}
	if !last.Info.Status.IsPending() && last.Info.Status != common.StatusFailed {
		return nil
	}
	last.Info.Description = interrupted + why
	last.Info.Status = common.StatusFailed
	if err := c.Releases.Update(last); err != nil {
		return fmt.Errorf("mark release %s as interrupted: %w", at.Name, err)
	}
	return nil
}

// Install installs a release. A record that is there must be of a failed or an uninstalled one.
func (h *Helm) Install(o Order) (State, error) {
	c, err := h.configuration(o.Place)
	if err != nil {
		return State{}, err
	}
	a := action.NewInstall(c)
	a.ReleaseName, a.Namespace, a.CreateNamespace = o.Name, o.Namespace, o.CreateNamespace
	a.Replace = true
	a.Timeout, a.WaitStrategy, a.WaitOptions = o.Timeout, kube.HookOnlyStrategy, h.waits()
	a.TakeOwnership = o.TakeOwnership
	a.ServerSideApply = o.ServerSide != "false"
	a.ForceConflicts = o.ForceConflicts && a.ServerSideApply
	a.Labels = map[string]string{digestLabel: o.Digest}
	a.DisableOpenAPIValidation = true // the API validates
	_, err = a.Run(o.Chart, o.Values)
	return h.after(c, o.Place, err)
}

// Upgrade upgrades a release.
func (h *Helm) Upgrade(o Order) (State, error) {
	c, err := h.configuration(o.Place)
	if err != nil {
		return State{}, err
	}
	abandoned, err := abandonedOf(c, o.Name)
	if err != nil {
		return State{}, err
	}
	a := action.NewUpgrade(c)
	a.Namespace, a.MaxHistory = o.Namespace, history
	a.Timeout, a.WaitStrategy, a.WaitOptions = o.Timeout, kube.HookOnlyStrategy, h.waits()
	a.TakeOwnership = o.TakeOwnership
	if o.ServerSide != "" {
		a.ServerSideApply = o.ServerSide
	}
	a.ForceConflicts = o.ForceConflicts
	if a.ForceConflicts {
		a.ServerSideApply = "true"
	}
	a.ResetValues = true
	a.Labels = map[string]string{digestLabel: o.Digest}
	a.DisableOpenAPIValidation = true // the API validates
	if _, err = a.Run(o.Name, o.Chart, o.Values); err == nil {
		err = removeAbandoned(c, o.Place, abandoned)
	}
	return h.after(c, o.Place, err)
}

// Uninstall uninstalls a release, and deletes its records.
func (h *Helm) Uninstall(at Place, timeout time.Duration) error {
	c, err := h.configuration(at)
	if err != nil {
		return err
	}
	a := action.NewUninstall(c)
	a.IgnoreNotFound = true
	a.Timeout, a.WaitStrategy, a.WaitOptions = timeout, kube.HookOnlyStrategy, h.waits()
	a.DeletionPropagation = "background"
	if _, err := a.Run(at.Name); err != nil {
		return err
	}
	return nil
}

func (h *Helm) waits() []kube.WaitOption { return []kube.WaitOption{kube.WithWaitContext(h.lead)} }

// after reads what an operation has left.
func (h *Helm) after(c *action.Configuration, at Place, failed error) (State, error) {
	last, err := lastOf(c, at.Name)
	if err != nil || last == nil {
		return State{}, errors.Join(failed, err)
	}
	s, err := stateOf(c, last)
	return s, errors.Join(failed, err)
}

// abandonedOf returns the manifests of failed revisions after the deployed one. Helm compares an
// upgrade with the deployed revision alone, and would leave what only those have created.
func abandonedOf(c *action.Configuration, name string) (manifests []string, err error) {
	records, err := c.Releases.History(name)
	if err != nil {
		return nil, fmt.Errorf("read the records of release %s: %w", name, err)
	}
	deployed, failed := 0, map[int]string{}
	for _, r := range records {
		one, err := typed(r)
		if err != nil || one.Info == nil {
			continue
		}
		switch one.Info.Status {
		case common.StatusDeployed:
			deployed = max(deployed, one.Version)
		case common.StatusFailed:
			failed[one.Version] = one.Manifest
		}
	}
	for version, manifest := range failed {
		if version > deployed {
			manifests = append(manifests, manifest)
		}
	}
	return manifests, nil
}

// removeAbandoned deletes the objects of those manifests that the release does not have now.
func removeAbandoned(c *action.Configuration, at Place, manifests []string) error {
	if len(manifests) == 0 {
		return nil
	}
	last, err := lastOf(c, at.Name)
	if err != nil || last == nil {
		return err
	}
	now, err := c.KubeClient.Build(strings.NewReader(last.Manifest), false)
	if err != nil {
		return err
	}
	for _, m := range manifests {
		old, err := c.KubeClient.Build(strings.NewReader(m), false)
		if err != nil {
			continue // of a kind that has gone, and its objects with it
		}
		var rest kube.ResourceList
		for _, info := range old.Difference(now) {
			if info.Get() != nil {
				continue // it has gone
			}
			o, err := meta.Accessor(info.Object)
			if err != nil || o.GetAnnotations()["meta.helm.sh/release-name"] != at.Name ||
				o.GetAnnotations()["meta.helm.sh/release-namespace"] != at.Namespace ||
				o.GetAnnotations()[kube.ResourcePolicyAnno] == kube.KeepPolicy {
				continue
			}
			rest = append(rest, info)
		}
		if len(rest) == 0 {
			continue
		}
		if _, errs := c.KubeClient.Delete(rest, metav1.DeletePropagationBackground); len(errs) > 0 {
			return fmt.Errorf("delete what an interrupted upgrade has left: %w", errors.Join(errs...))
		}
	}
	return nil
}

// getter gives Helm the clients of a term.
type getter struct {
	config    *rest.Config
	namespace string

	mu        sync.Mutex
	discovery discovery.CachedDiscoveryInterface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
}

func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.discovery == nil {
		client, err := discovery.NewDiscoveryClientForConfig(g.config)
		if err != nil {
			return nil, err
		}
		g.discovery = memory.NewMemCacheClient(client)
	}
	return g.discovery, nil
}

func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	client, err := g.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mapper == nil {
		g.mapper = restmapper.NewDeferredDiscoveryRESTMapper(client)
	}
	return g.mapper, nil
}

func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientapi.NewConfig(),
		&clientcmd.ConfigOverrides{Context: clientapi.Context{Namespace: g.namespace}})
}
