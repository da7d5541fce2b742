package csidriver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// GetPluginInfo implements csipb.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.config.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csipb.IdentityServer.
func (d *Driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	answer := &csipb.GetPluginCapabilitiesResponse{
		Capabilities: []*csipb.PluginCapability{{Type: &csipb.PluginCapability_Service_{
			Service: &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE},
		}}}}
	if d.config.Topology != nil {
		answer.Capabilities = append(answer.Capabilities,
			&csipb.PluginCapability{Type: &csipb.PluginCapability_Service_{
				Service: &csipb.PluginCapability_Service{
					Type: csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS},
			}})
	}
	return answer, nil
}

// Probe implements csipb.IdentityServer.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// ControllerGetCapabilities implements csipb.ControllerServer.
func (d *Driver) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	answer := &csipb.ControllerGetCapabilitiesResponse{}
	for _, c := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return answer, nil
}

// CreateVolume implements csipb.ControllerServer.
func (d *Driver) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if r.Name == "" || len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the request lacks a name or capabilities")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	size := max(r.CapacityRange.GetRequiredBytes(), 1<<20)
	if limit := r.CapacityRange.GetLimitBytes(); limit > 0 && limit < size {
		return nil, status.Error(codes.OutOfRange, "the limit is too small")
	}
	id := fmt.Sprintf("%.8x", sha256.Sum256([]byte(r.Name)))
	have := d.state.Volumes[id]
	if have != nil &&
		(have.Size < size || r.CapacityRange.GetLimitBytes() > 0 && have.Size > r.CapacityRange.GetLimitBytes()) {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s has another size", r.Name)
	}
	if have == nil {
		block := r.VolumeCapabilities[0].GetBlock() != nil
		if err := d.add(id, r.Name, size, block); err != nil {
			return nil, err
		}
		have = d.state.Volumes[id]
	}
	answer := &csipb.Volume{VolumeId: id, CapacityBytes: have.Size, VolumeContext: r.Parameters}
	if d.config.Topology != nil {
		answer.AccessibleTopology = []*csipb.Topology{{Segments: d.config.Topology}}
	}
	return &csipb.CreateVolumeResponse{Volume: answer}, nil
}

// DeleteVolume implements csipb.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "the request lacks an ID")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.state.Volumes[r.VolumeId]
	if v == nil {
		return &csipb.DeleteVolumeResponse{}, nil
	}
	if len(v.Staged) > 0 || len(v.Shown) > 0 {
		return nil, d.violate("volume %s is deleted while a node has it", r.VolumeId)
	}
	if err := os.RemoveAll(d.dir(r.VolumeId)); err != nil {
		return nil, err
	}
	delete(d.state.Volumes, r.VolumeId)
	return &csipb.DeleteVolumeResponse{}, d.save()
}

// ControllerPublishVolume implements csipb.ControllerServer.
func (d *Driver) ControllerPublishVolume(
	_ context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.VolumeId, r.NodeId, given(r.VolumeCapability))
	if err != nil {
		return nil, err
	}
	if !d.config.Shared && r.NodeId != d.config.Node {
		return nil, status.Errorf(codes.NotFound, "there is no node %s", r.NodeId)
	}
	if v.Attached != "" && v.Attached != r.NodeId {
		return nil, d.violate("volume %s is attached to %s while %s has it", r.VolumeId, r.NodeId, v.Attached)
	}
	v.Attached = r.NodeId
	return &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached-to": r.NodeId}}, d.save()
}

// ControllerUnpublishVolume implements csipb.ControllerServer.
func (d *Driver) ControllerUnpublishVolume(
	_ context.Context, r *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "the request lacks an ID")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.state.Volumes[r.VolumeId]
	if v == nil || r.NodeId != "" && v.Attached != r.NodeId {
		return &csipb.ControllerUnpublishVolumeResponse{}, nil
	}
	if len(v.Staged) > 0 || len(v.Shown) > 0 {
		return nil, d.violate("volume %s is detached while its node has it", r.VolumeId)
	}
	v.Attached = ""
	return &csipb.ControllerUnpublishVolumeResponse{}, d.save()
}

// ValidateVolumeCapabilities implements csipb.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(
	_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest,
) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the request lacks capabilities")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.find(r.VolumeId); err != nil {
		return nil, err
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters,
	}}, nil
}

// ControllerExpandVolume implements csipb.ControllerServer.
func (d *Driver) ControllerExpandVolume(
	_ context.Context, r *csipb.ControllerExpandVolumeRequest,
) (*csipb.ControllerExpandVolumeResponse, error) {
	if r.CapacityRange == nil {
		return nil, status.Error(codes.InvalidArgument, "the request lacks a size")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: max(v.Size, r.CapacityRange.RequiredBytes),
		NodeExpansionRequired: true}, nil
}
