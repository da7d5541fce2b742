package podtemplate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

func (c *checker) validateProbes(container *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, p := range []struct {
		name      string
		probe     *corev1.Probe
		readiness bool
	}{
		{"livenessProbe", container.LivenessProbe, false},
		{"readinessProbe", container.ReadinessProbe, true},
		{"startupProbe", container.StartupProbe, false},
	} {
		if p.probe == nil {
			continue
		}
		at := at.Child(p.name)
		errs = append(errs, c.validateProbe(p.probe, at)...)
		if !p.readiness && p.probe.SuccessThreshold != 1 {
			errs = append(errs, field.Invalid(at.Child("successThreshold"), p.probe.SuccessThreshold, "must be 1"))
		}
		if p.readiness && p.probe.TerminationGracePeriodSeconds != nil {
			errs = append(errs,
				field.Invalid(at.Child("terminationGracePeriodSeconds"), *p.probe.TerminationGracePeriodSeconds,
					"must not be set for readinessProbes"))
		}
	}
	return errs
}

func (c *checker) validateProbe(p *corev1.Probe, at *field.Path) field.ErrorList {
	errs := c.validateHandler(handler{exec: p.Exec, http: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC}, at)
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds},
		{"timeoutSeconds", p.TimeoutSeconds},
		{"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold},
		{"failureThreshold", p.FailureThreshold},
	} {
		errs = append(errs, validation.NonNegative(n.value, at.Child(n.name))...)
	}
	if s := p.TerminationGracePeriodSeconds; s != nil {
		errs = append(errs, validation.Positive(*s, at.Child("terminationGracePeriodSeconds"))...)
	}
	return errs
}

func (c *checker) validateLifecycle(container *corev1.Container, at *field.Path) field.ErrorList {
	if container.Lifecycle == nil {
		return nil
	}
	var errs field.ErrorList
	at = at.Child("lifecycle")
	for _, hook := range []struct {
		name string
		does *corev1.LifecycleHandler
	}{{"postStart", container.Lifecycle.PostStart}, {"preStop", container.Lifecycle.PreStop}} {
		h := hook.does
		if h == nil {
			continue
		}
		errs = append(errs,
			c.validateHandler(handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep},
				at.Child(hook.name))...)
	}
	return errs
}

func (c *checker) validateSleep(s *corev1.SleepAction, at *field.Path) field.ErrorList {
	grace := ptr.Deref(c.spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	if s.Seconds < 0 || s.Seconds > grace {
		return field.ErrorList{
			field.Invalid(at, s.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", grace))}
	}
	return nil
}

// handler is the union of the actions of probes and hooks.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func (c *checker) validateHandler(h handler, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	count := 0
	one := func(set bool, name string, check func(at *field.Path)) {
		if !set {
			return
		}
		count++
		if count > 1 {
			errs = append(errs, field.Forbidden(at.Child(name), "may not specify more than 1 handler type"))
			return
		}
		check(at.Child(name))
	}
	one(h.exec != nil, "exec", func(at *field.Path) {
		if len(h.exec.Command) == 0 {
			errs = append(errs, field.Required(at.Child("command"), ""))
		}
	})
	one(h.http != nil, "httpGet", func(at *field.Path) { errs = append(errs, validateHTTPGet(h.http, at)...) })
	one(h.tcp != nil, "tcpSocket", func(at *field.Path) {
		errs = append(errs, validation.PortOrName(h.tcp.Port, at.Child("port"))...)
	})
	one(h.grpc != nil, "grpc", func(at *field.Path) {
		errs = append(errs, validation.Port(h.grpc.Port, at.Child("port"))...)
	})
	one(h.sleep != nil, "sleep", func(at *field.Path) { errs = append(errs, c.validateSleep(h.sleep, at)...) })
	if count == 0 {
		errs = append(errs, field.Required(at, "must specify a handler type"))
	}
	return errs
}

func validateHTTPGet(get *corev1.HTTPGetAction, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if get.Path == "" {
		errs = append(errs, field.Required(at.Child("path"), ""))
	}
	errs = append(errs, validation.PortOrName(get.Port, at.Child("port"))...)
	errs = append(errs, validation.Enum(get.Scheme, at.Child("scheme"), corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for _, header := range get.HTTPHeaders {
		errs = append(errs, validation.Check(header.Name, at.Child("httpHeaders"), utilvalidation.IsHTTPHeaderName)...)
	}
	return errs
}
