// Package dra has drivers prepare the devices of pods' ResourceClaims on this node, and returns the
// CDI names of a container's devices for the runtime.
//
//	Prepare ──▶ each claim: NodePrepareResources of its drivers ──▶ Devices
//	Unprepare ──▶ each claim without another pod: NodeUnprepareResources
//
// A claim is prepared once for all of its pods. A record of the claim is on disk before a driver is
// asked, so that a restarted kubelet takes back what an earlier one has begun.
package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/barque/barque/internal/atomicfile"
)

const (
	stateFile = "dra_manager_state"
	// absence is how long a driver may be gone before its devices on this node are withdrawn: an
	// update of the driver takes less.
	absence = 30 * time.Second
)

// Config configures a Manager.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	Dir      string // for the file with the prepared claims
	Logger   *slog.Logger
}

// Manager prepares claims. It is the plugins.Handler of drivers. It is safe for concurrent use.
type Manager struct {
	Config
	drivers *drivers

	// preparing serializes Prepare and Unprepare of a claim.
	preparing keyed

	mu     sync.Mutex
	claims map[types.UID]*prepared
}

// prepared is a claim that a driver may know. It is a part of the file.
type prepared struct {
	UID       types.UID            `json:"uid"`
	Namespace string               `json:"namespace"`
	Name      string               `json:"name"`
	Pods      sets.Set[types.UID]  `json:"pods"`
	Drivers   map[string][]*device `json:"drivers"` // the devices that each has prepared
	Done      bool                 `json:"done"`
}

type device struct {
	Requests []string `json:"requests,omitempty"` // all when empty
	CDI      []string `json:"cdi,omitempty"`
}

// New reads the saved claims.
func New(config Config) (*Manager, error) {
	m := &Manager{Config: config, drivers: newDrivers(), claims: map[types.UID]*prepared{}}
	path := filepath.Join(m.Dir, stateFile)
	if err := atomicfile.Sweep(path); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	var list []*prepared
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil,
			fmt.Errorf("read which devices are prepared on this node: %w; remove %s when no pod here uses devices", err,
				path)
	}
	for _, c := range list {
		m.claims[c.UID] = c
	}
	return m, nil
}

// save writes the file. The caller holds mu.
func (m *Manager) save() error {
	list := slices.SortedFunc(maps.Values(m.claims), func(a, b *prepared) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	})
	data, err := json.Marshal(list)
	if err == nil {
		err = atomicfile.Write(filepath.Join(m.Dir, stateFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note which devices are prepared: %w", err)
	}
	return nil
}

// need is a claim that a pod uses.
type need struct {
	name string
	made bool // made for the pod
}

func needs(pod *v1.Pod) ([]need, error) {
	var out []need
	for i := range pod.Spec.ResourceClaims {
		name, made, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, fmt.Errorf("claim %s of the pod: %w", pod.Spec.ResourceClaims[i].Name, err)
		}
		if name != nil {
			out = append(out, need{*name, made})
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		out = append(out, need{extended.ResourceClaimName, true})
	}
	return out, nil
}

// Prepare has the pod's devices prepared. It may be called again at no cost: prepared
// claims are skipped.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) error {
	list, err := needs(pod)
	if err != nil {
		return err
	}
	for _, n := range list {
		if err := m.prepareClaim(ctx, pod, n); err != nil {
			return fmt.Errorf("prepare devices of claim %s: %w", n.name, err)
		}
	}
	return nil
}

func (m *Manager) prepareClaim(ctx context.Context, pod *v1.Pod, n need) error {
	defer m.preparing.lock(pod.Namespace + "/" + n.name)()
	if m.isPrepared(pod, n.name) {
		return nil
	}
	claim, err := m.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if n.made {
		if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
			return err
		}
	}
	if !resourceclaim.IsReservedForPod(pod, claim, false) {
		return fmt.Errorf("pod %s (%s) is not allowed to use resource claim %s (%s)", pod.Name, pod.UID, claim.Name,
			claim.UID)
	}
	if claim.Status.Allocation == nil {
		return errors.New("it has no devices")
	}
	is, err := m.begin(pod, claim)
	if err != nil || is.Done {
		return err
	}
	names := driversOf(claim)
	// A missing driver is reported before others are asked.
	for _, name := range names {
		if _, err := m.drivers.get(name); err != nil {
			return err
		}
	}
	for _, name := range names {
		devices, err := m.drivers.prepare(ctx, name, claim)
		if err != nil {
			return err
		}
		m.mu.Lock()
		is.Drivers[name] = devices
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	is.Done = true
	return m.save()
}

// isPrepared reports whether the claim is prepared for this pod. A claim of that name and another
// UID is not: the pod is the user of one of them only.
func (m *Manager) isPrepared(pod *v1.Pod, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.claims {
		if c.Namespace == pod.Namespace && c.Name == name && c.Done && c.Pods.Has(pod.UID) {
			return true
		}
	}
	return false
}

// begin records that the pod uses the claim, before a driver knows of it.
func (m *Manager) begin(pod *v1.Pod, claim *resourcev1.ResourceClaim) (*prepared, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	is := m.claims[claim.UID]
	if is == nil {
		is = &prepared{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name, Pods: sets.New[types.UID](),
			Drivers: map[string][]*device{}}
		for _, name := range driversOf(claim) {
			is.Drivers[name] = nil
		}
		m.claims[claim.UID] = is
	}
	is.Pods.Insert(pod.UID)
	return is, m.save()
}

func driversOf(claim *resourcev1.ResourceClaim) []string {
	names := sets.New[string]()
	for _, r := range claim.Status.Allocation.Devices.Results {
		names.Insert(r.Driver)
	}
	return sets.List(names)
}

// Unprepare takes back the devices that no other pod uses. It must be called after the pod's
// containers have ended, and again until it succeeds.
func (m *Manager) Unprepare(ctx context.Context, pod types.UID) error {
	var errs []error
	for _, c := range m.of(pod) {
		if err := m.unprepareClaim(ctx, pod, c); err != nil {
			errs = append(errs, fmt.Errorf("take back devices of claim %s/%s: %w", c.Namespace, c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// of returns the claims of a pod.
func (m *Manager) of(pod types.UID) (out []*prepared) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.claims {
		if c.Pods.Has(pod) {
			out = append(out, c)
		}
	}
	return out
}

func (m *Manager) unprepareClaim(ctx context.Context, pod types.UID, c *prepared) error {
	defer m.preparing.lock(c.Namespace + "/" + c.Name)()
	m.mu.Lock()
	others := c.Pods.Len() - 1
	names := slices.Sorted(maps.Keys(c.Drivers))
	m.mu.Unlock()
	if others == 0 {
		for _, name := range names {
			if err := m.drivers.unprepare(ctx, name,
				&drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}); err != nil {
				return err
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.Pods.Delete(pod); c.Pods.Len() == 0 {
		delete(m.claims, c.UID)
	}
	return m.save()
}

// Pods returns the pods that have devices here, those of an earlier process among them.
func (m *Manager) Pods() ([]types.UID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := sets.New[types.UID]()
	for _, c := range m.claims {
		all = all.Union(c.Pods)
	}
	return sets.List(all), nil
}

// Devices returns the CDI names of the devices that a container gets.
func (m *Manager) Devices(pod *v1.Pod, container *v1.Container) []string {
	var out []string
	add := func(claim, request string) {
		for _, name := range m.cdiNames(pod, claim, request) {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	for _, use := range container.Resources.Claims {
		for i := range pod.Spec.ResourceClaims {
			if pod.Spec.ResourceClaims[i].Name != use.Name {
				continue
			}
			if name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil {
				add(*name, use.Request)
			}
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		for _, r := range extended.RequestMappings {
			if r.ContainerName == container.Name {
				add(extended.ResourceClaimName, r.RequestName)
			}
		}
	}
	return out
}

func (m *Manager) cdiNames(pod *v1.Pod, claim, request string) (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.claims {
		if c.Namespace != pod.Namespace || c.Name != claim || !c.Pods.Has(pod.UID) {
			continue
		}
		for _, driver := range slices.Sorted(maps.Keys(c.Drivers)) {
			for _, d := range c.Drivers[driver] {
				if request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(r string) bool {
					return resourceclaim.BaseRequestRef(r) == request
				}) {
					out = append(out, d.CDI...)
				}
			}
		}
	}
	return out
}

// keyed is a lock for each name.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*keyedLock
}

type keyedLock struct {
	mu    sync.Mutex
	users int
}

func (k *keyed) lock(name string) (unlock func()) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*keyedLock{}
	}
	l := k.locks[name]
	if l == nil {
		l = &keyedLock{}
		k.locks[name] = l
	}
	l.users++
	k.mu.Unlock()
	l.mu.Lock()
	return func() {
		l.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, name)
		}
	}
}
