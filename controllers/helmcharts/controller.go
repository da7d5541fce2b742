package helmcharts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/helmcharts/release"
	"github.com/barque/barque/controllers/helmcharts/source"
	"github.com/barque/barque/controllers/runtime"
)

// Options of a Controller.
type Options struct {
	Informers informers.SharedInformerFactory
	// Custom makes informers of custom resources, which live as long as the process.
	Custom dynamicinformer.DynamicSharedInformerFactory
	Logger *slog.Logger
	// ConfigFor makes the configuration of further clients of a term.
	ConfigFor func(lead context.Context) *rest.Config
	// Charts is the directory of this server's archives.
	Charts  string
	Metrics *Metrics // nil is none
	// Workers is how many releases are worked on at once. Default 3.
	Workers int
}

// Metrics count operations.
type Metrics struct{ operations *prometheus.CounterVec }

// NewMetrics registers the metrics of a process.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "barque_helm_operations_total",
		Help: "Operations on releases of HelmCharts that this server has ended as the leader.",
	}, []string{"operation", "result"})}
	return m, registry.Register(m.operations)
}

func (m *Metrics) count(of step, err error) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "failure"
	}
	m.operations.WithLabelValues(string(of), result).Inc()
}

// Controller works on HelmCharts.
type Controller struct {
	cfg                      Options
	charts, configs, secrets cache.SharedIndexInformer
	list                     corelisters.SecretLister
	fetcher                  *source.Fetcher

	mu sync.Mutex
	// running are releases with an operation in this process. One that does not end with its term
	// keeps its place: its clients are cut, and the next term waits for it.
	running map[release.Place]bool
}

// New asks the factories for the informers it needs; it is called before they are started.
func New(cfg Options) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 3
	}
	secrets := cfg.Informers.Core().V1().Secrets()
	return &Controller{
		cfg: cfg, charts: cfg.Custom.ForResource(Resource).Informer(),
		configs: cfg.Custom.ForResource(ConfigResource).Informer(),
		secrets: secrets.Informer(), list: secrets.Lister(),
		fetcher: &source.Fetcher{Dir: cfg.Charts}, running: map[release.Place]bool{},
	}, nil
}

// helm is the part of package release that the controller needs.
type helm interface {
	State(at release.Place) (release.State, error)
	Interrupt(at release.Place, why string) error
	Install(o release.Order) (release.State, error)
	Upgrade(o release.Order) (release.State, error)
	Uninstall(at release.Place, timeout time.Duration) error
}

// Times of attempts.
const (
	defaultTimeout = 5 * time.Minute
	firstRetry     = 5 * time.Second
	lastRetry      = 6 * time.Minute // as those of a Job
	defaultLimit   = 1000            // attempts, as in k3s
	// grace is how long the end of a term waits for Helm, whose requests have ended then.
	grace = 3 * time.Second
	// trimEvery is the interval at which archives are dropped.
	trimEvery = 5 * time.Minute
)

// term is the controller's work of one term of leadership.
type term struct {
	*Controller
	helm     helm
	objects  objects
	recorder record.EventRecorder
	loop     *runtime.Loop

	mu       sync.Mutex
	attempts map[runtime.Key]attempt
}

// attempt counts the failures of what a HelmChart asks for.
type attempt struct {
	digest   string
	failures int32
	next     time.Time
}

// Run works for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	config := c.cfg.ConfigFor(ctx)
	live, err := newObjects(client, config)
	if err != nil {
		return err
	}
	recorder, stop := runtime.Recorder(ctx, client, "helm-controller")
	defer stop()
	return c.lead(ctx, release.New(ctx, config, c.cfg.Logger.With("part", "helm")), live, recorder)
}

// lead works with Helm and objects that may be a test's.
func (c *Controller) lead(ctx context.Context, h helm, live objects, recorder record.EventRecorder) error {
	t := &term{Controller: c, helm: h, objects: live, recorder: recorder, attempts: map[runtime.Key]attempt{}}
	t.loop = runtime.NewLoop("helmcharts", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.charts, runtime.Itself[unstructured.Unstructured])
	runtime.Watch(t.loop, c.configs, runtime.Itself[unstructured.Unstructured])
	runtime.Watch(t.loop, c.secrets, func(old, now *corev1.Secret) []runtime.Key {
		if now == nil {
			now = old
		}
		return t.named(now.Namespace, now.Name)
	})
	var trimming sync.WaitGroup
	defer trimming.Wait()
	trimming.Go(func() { t.trim(ctx) }) // ends with ctx
	return t.loop.Run(ctx)
}

func (t *term) trim(ctx context.Context) {
	ticker := time.NewTicker(trimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			t.fetcher.Trim()
		}
	}
}

// named returns the HelmCharts whose values are in a Secret.
func (t *term) named(namespace, secret string) (keys []runtime.Key) {
	names := func(s ValuesSecret) bool { return s.Name == secret && !s.IgnoreUpdates }
	for _, o := range t.all() {
		if o.Namespace != namespace {
			continue
		}
		config, _ := t.configOf(o) // without it, the next look fails
		if slices.ContainsFunc(o.Spec.ValuesSecrets, names) ||
			config != nil && slices.ContainsFunc(config.Spec.ValuesSecrets, names) {
			keys = append(keys, runtime.KeyOf(o))
		}
	}
	return keys
}

func (c *Controller) all() (out []*Object) {
	for _, obj := range c.charts.GetStore().List() {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			if o, err := read[Object](u); err == nil {
				out = append(out, o)
			}
		}
	}
	return out
}

func (c *Controller) configOf(o *Object) (*Config, error) {
	obj, exists, err := c.configs.GetStore().GetByKey(o.Namespace + "/" + o.Name)
	u, ok := obj.(*unstructured.Unstructured)
	if err != nil || !exists || !ok {
		return nil, err
	}
	return read[Config](u)
}

// rival returns an older HelmChart that asks for the same release.
func (c *Controller) rival(o *Object) *Object {
	for _, other := range c.all() {
		if other.UID == o.UID || other.Name != o.Name || other.namespace() != o.namespace() || !other.managed() {
			continue
		}
		age := other.CreationTimestamp.Compare(o.CreationTimestamp.Time)
		if age < 0 || age == 0 && other.UID < o.UID {
			return other
		}
	}
	return nil
}

// reconcile takes one step for a HelmChart.
func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	obj, exists, err := t.charts.GetStore().GetByKey(key.String())
	u, ok := obj.(*unstructured.Unstructured)
	if err != nil || !exists || !ok {
		t.clear(key)
		return 0, err
	}
	o, err := read[Object](u)
	if err != nil {
		return 0, err
	}
	deleted := o.DeletionTimestamp != nil
	held := slices.Contains(o.Finalizers, finalizer)
	switch {
	case deleted && !held:
		return 0, nil
	case deleted && (!o.managed() || t.rival(o) != nil):
		return 0, t.release(ctx, key, u)
	case !o.managed():
		return 0, nil
	case !held:
		rv, err := t.objects.SetFinalizers(ctx, u, append(slices.Clone(o.Finalizers), finalizer))
		if err == nil {
			t.loop.Writes().Wrote(key, t.charts, rv)
		}
		return 0, err
	}
	if other := t.rival(o); other != nil {
		return 0, t.report(ctx, key, o, false, true, "NameTaken", fmt.Sprintf(
			"The release %s/%s is that of the HelmChart %s/%s, which is older: give this one another name",
			o.namespace(), o.Name, other.Namespace, other.Name))
	}
	if v := strings.ToLower(o.Spec.HelmVersion); !deleted && v != "" && v != "v3" && v != "v4" {
		return 0, t.report(ctx, key, o, false, true, "UnsupportedVersion",
			fmt.Sprintf("Helm %s is not supported; v3 and v4 charts are", v))
	}
	return t.work(ctx, key, u, o, deleted)
}

// work takes one step for the release.
func (t *term) work(
	ctx context.Context, key runtime.Key, u *unstructured.Unstructured, o *Object, deleted bool,
) (time.Duration, error) {
	config, err := t.configOf(o)
	if err != nil {
		return 0, err
	}
	policy := reinstall
	for _, p := range []string{o.Spec.FailurePolicy, policyOf(config)} {
		if p != "" {
			policy = p
		}
	}
	at := release.Place{Namespace: o.namespace(), Name: o.Name, Driver: o.Spec.Driver}
	if t.busy(at) {
		return firstRetry, nil
	}
	state, err := t.helm.State(at)
	if err != nil {
		return 0, err
	}
	var values map[string]any
	wanted := ""
	if !deleted {
		var counted map[string]any
		if values, counted, err = valuesOf(o, config, t.secretsIn(o.Namespace)); err == nil {
			wanted, err = digest(o, config, counted)
		}
		if err != nil {
			return 0, t.report(ctx, key, o, false, true, "InvalidValues", err.Error())
		}
	}
	next := decide(state, wanted, policy, deleted)
	if next == install || next == upgrade || next == uninstall {
		if pause, stop := t.pause(key, wanted, o); stop {
			return 0, nil // what has failed is reported
		} else if pause > 0 {
			return pause, nil
		}
	}
	log := t.cfg.Logger.With("chart", key.String(), "release", at.Namespace+"/"+at.Name, "revision", state.Revision)
	switch next {
	case nothing:
		t.clear(key)
		return 0, t.report(ctx, key, o, true, false, "Deployed",
			fmt.Sprintf("Revision %d of chart %s is deployed", state.Revision, state.Chart))
	case wait:
		return 0, t.report(ctx, key, o, false, true, "Aborted", fmt.Sprintf(
			"Revision %d has failed: %s; change the spec, or the failurePolicy", state.Revision, state.Description))
	case forget:
		t.clear(key)
		return 0, t.release(ctx, key, u)
	case interrupt:
		log.Info("an operation of Helm was interrupted and is taken up again", "status", state.Status)
		t.recorder.Eventf(u, corev1.EventTypeNormal, "Interrupted",
			"Revision %d was left as %s; it is taken up again", state.Revision, state.Status)
		err := t.operate(ctx, at, func() error {
			return t.helm.Interrupt(at, "it was left as "+state.Status+", and is taken up again")
		})
		t.cfg.Metrics.count(interrupt, err)
		if err != nil {
			return 0, err
		}
		return time.Millisecond, nil // the record, which no informer shows, has changed
	}
	return t.change(ctx, key, u, o, config, change{next, at, state, wanted, values}, log)
}

func policyOf(config *Config) string {
	if config == nil {
		return ""
	}
	return config.Spec.FailurePolicy
}

// change is an operation of Helm that changes objects.
type change struct {
	step   step
	at     release.Place
	state  release.State
	wanted string
	values map[string]any
}

var doing = map[step]string{install: "Installing", upgrade: "Upgrading", uninstall: "Uninstalling"}

var done = map[step]string{install: "Installed", upgrade: "Upgraded", uninstall: "Uninstalled"}

func (t *term) change(
	ctx context.Context, key runtime.Key, u *unstructured.Unstructured, o *Object, config *Config, c change,
	log *slog.Logger,
) (time.Duration, error) {
	timeout := defaultTimeout
	if o.Spec.Timeout != nil && o.Spec.Timeout.Duration > 0 {
		timeout = o.Spec.Timeout.Duration
	}
	order := release.Order{
		Place: c.at, Values: c.values, Digest: c.wanted, Timeout: timeout, CreateNamespace: o.Spec.CreateNamespace,
		TakeOwnership: o.Spec.TakeOwnership, ForceConflicts: o.Spec.ForceConflicts, ServerSide: o.Spec.ServerSide,
	}
	if config != nil {
		order.ForceConflicts = order.ForceConflicts || config.Spec.ForceConflicts
		if config.Spec.ServerSide != "" {
			order.ServerSide = config.Spec.ServerSide
		}
	}
	if c.step != uninstall {
		where, err := t.where(ctx, o)
		if err == nil {
			var data []byte
			if data, err = t.fetcher.Fetch(ctx, where); err == nil {
				order.Chart, err = release.Load(data)
			}
		}
		if err != nil {
			return t.failed(ctx, key, u, o, c, "ChartUnavailable", err, log)
		}
	}
	if err := t.report(ctx, key, o, false, false, doing[c.step], doing[c.step]+" the release"); err != nil {
		return 0, err
	}
	log.Info("an operation of Helm begins", "operation", c.step)
	err := t.operate(ctx, c.at, func() (err error) {
		switch c.step {
		case install:
			_, err = t.helm.Install(order)
		case upgrade:
			_, err = t.helm.Upgrade(order)
		case uninstall:
			err = t.helm.Uninstall(c.at, timeout)
		}
		return err
	})
	if ctx.Err() != nil {
		return 0, ctx.Err() // its record is pending: the next leader takes it up
	}
	t.cfg.Metrics.count(c.step, err)
	if err != nil {
		if passing(err) {
			// The objects may be as they should; a failure policy is not for this.
			err = errors.Join(err, t.operate(ctx, c.at, func() error {
				return t.helm.Interrupt(c.at, "the API did not answer, and it is taken up again")
			}))
		}
		return t.failed(ctx, key, u, o, c, "OperationFailed", err, log)
	}
	log.Info("an operation of Helm has ended", "operation", c.step)
	t.recorder.Event(u, corev1.EventTypeNormal, done[c.step], done[c.step]+" the release "+c.at.Namespace+"/"+c.at.Name)
	if fields := o.idle(); fields != "" && c.step != uninstall {
		t.recorder.Event(u, corev1.EventTypeNormal, "FieldsIgnored",
			"Without an effect, because there are no jobs: "+fields)
	}
	if c.step != uninstall {
		t.clear(key)
	}
	return time.Millisecond, nil // the record, which no informer shows, has changed
}

// passing reports whether an error is of the API's state at that moment.
func passing(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err)
}

// failed reports a failure, and returns when the next attempt is.
func (t *term) failed(
	ctx context.Context, key runtime.Key, u *unstructured.Unstructured, o *Object, c change, reason string, err error,
	log *slog.Logger,
) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	pause := t.count(key, c.wanted)
	log.Warn("an operation of Helm failed", "operation", c.step, "err", err, "again", pause)
	message := bounded(err.Error())
	t.recorder.Event(u, corev1.EventTypeWarning, reason, message)
	return pause, t.report(ctx, key, o, false, true, reason, message)
}

const maxMessage = 1000

func bounded(message string) string {
	message = strings.ReplaceAll(message, "\n", "; ")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " …"
	}
	return message
}

// pause returns how long the next attempt waits. stop is set when there have been enough.
func (t *term) pause(key runtime.Key, wanted string, o *Object) (pause time.Duration, stop bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, tried := t.attempts[key]
	if !tried || a.digest != wanted {
		return 0, false
	}
	limit := int32(defaultLimit)
	if o.Spec.BackOffLimit != nil {
		limit = *o.Spec.BackOffLimit
	}
	if a.failures > limit {
		return 0, true
	}
	return max(0, time.Until(a.next)), false
}

func (t *term) count(key runtime.Key, wanted string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.attempts[key]
	if a.digest != wanted {
		a = attempt{digest: wanted}
	}
	a.failures++
	pause := min(firstRetry<<min(a.failures-1, 10), lastRetry)
	a.next = time.Now().Add(pause)
	t.attempts[key] = a
	return pause
}

func (t *term) clear(key runtime.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.attempts, key)
}

func (c *Controller) busy(at release.Place) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[at]
}

// errBusy is returned while an operation of an earlier term has not ended.
var errBusy = errors.New("an operation of an earlier term has not ended in this process")

// operate runs an operation. When the term ends, Helm's requests do; a template may still compute.
// It is left behind then: it can write nothing.
func (t *term) operate(ctx context.Context, at release.Place, do func() error) error {
	t.Controller.mu.Lock()
	if t.running[at] {
		t.Controller.mu.Unlock()
		return errBusy
	}
	t.running[at] = true
	t.Controller.mu.Unlock()
	ended := make(chan error, 1)
	go func() { // ends with Helm's function
		err := safely(do)
		t.Controller.mu.Lock()
		delete(t.running, at)
		t.Controller.mu.Unlock()
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		t.cfg.Logger.Warn("an operation of Helm has not ended with the term; it can write nothing",
			"release", at.Namespace+"/"+at.Name)
		return context.Cause(ctx)
	}
}

func safely(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in Helm: %v\n%s", p, debug.Stack())
		}
	}()
	return do()
}

func (t *term) secretsIn(namespace string) secretsOf {
	return func(name string) (*corev1.Secret, error) {
		s, err := t.list.Secrets(namespace).Get(name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return s, err
	}
}

// where gathers what fetching a chart needs.
func (t *term) where(ctx context.Context, o *Object) (source.Chart, error) {
	s := &o.Spec
	c := source.Chart{
		Chart: s.Chart, Version: s.Version, Repo: s.Repo, Content: s.ChartContent, CA: []byte(s.RepoCA),
		Insecure: s.InsecureSkipTLSVerify, PlainHTTP: s.PlainHTTP, PassCredentials: s.AuthPassCredentials,
	}
	secrets := t.secretsIn(o.Namespace)
	if name := s.AuthSecret.Name; name != "" {
		secret, err := secrets(name)
		if err != nil || secret == nil {
			return c, errors.Join(fmt.Errorf("authSecret: there is no Secret %s", name), err)
		}
		c.Username, c.Password = string(secret.Data["username"]), string(secret.Data["password"])
		c.ClientCert, c.ClientKey = secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	}
	if name := s.DockerRegistrySecret.Name; name != "" {
		secret, err := secrets(name)
		if err != nil || secret == nil {
			return c, errors.Join(fmt.Errorf("dockerRegistrySecret: there is no Secret %s", name), err)
		}
		c.DockerConfig = secret.Data[corev1.DockerConfigJsonKey]
	}
	if name := s.RepoCAConfigMap.Name; name != "" {
		texts, err := t.objects.ConfigMap(ctx, o.Namespace, name)
		if err != nil {
			return c, fmt.Errorf("repoCAConfigMap: %w", err)
		}
		for _, text := range texts {
			c.CA = append(append(c.CA, '\n'), text...)
		}
	}
	return c, nil
}

// release takes the finalizer away.
func (t *term) release(ctx context.Context, key runtime.Key, u *unstructured.Unstructured) error {
	rest := slices.DeleteFunc(slices.Clone(u.GetFinalizers()), func(f string) bool { return f == finalizer })
	rv, err := t.objects.SetFinalizers(ctx, u, rest)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		t.loop.Writes().Wrote(key, t.charts, rv)
	}
	return err
}

// report brings the conditions up to date.
func (t *term) report(
	ctx context.Context, key runtime.Key, o *Object, deployed, failed bool, reason, message string,
) error {
	now := o.Status
	now.Conditions = slices.Clone(now.Conditions)
	changed := put(&now, condition(Deployed, deployed, reason, message))
	if failed {
		changed = put(&now, condition(Failed, true, reason, message)) || changed
	} else if deployed || len(now.Conditions) == 1 {
		changed = put(&now, condition(Failed, false, reason, "")) || changed
	}
	if !changed {
		return nil
	}
	rv, err := t.objects.WriteStatus(ctx, o, now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		o.Status = now
		t.loop.Writes().Wrote(key, t.charts, rv)
	}
	return err
}

func condition(kind string, is bool, reason, message string) Condition {
	c := Condition{Type: kind, Status: string(corev1.ConditionFalse), Reason: reason, Message: message}
	if is {
		c.Status = string(corev1.ConditionTrue)
	}
	return c
}

// put sets a condition; it returns whether that changes anything.
func put(s *Status, c Condition) bool {
	for i := range s.Conditions {
		if s.Conditions[i].Type == c.Type {
			changed := s.Conditions[i] != c
			s.Conditions[i] = c
			return changed
		}
	}
	s.Conditions = append(s.Conditions, c)
	return true
}
