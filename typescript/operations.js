// Every operation of the API, as a method. Written by `scripts/typescript_sdk` from the OpenAPI document; do not edit.

/** @typedef {import('./transport.js').Transport} Transport */
/** @typedef {import('./sandbox.js').Sandbox} Sandbox */
/** @typedef {import('./terms.d.ts').Content} Content */
/** @template {import('./terms.d.ts').OperationId} O @typedef {import('./terms.d.ts').Answer<O>} Answer */
/** @template {import('./terms.d.ts').OperationId} O @typedef {import('./terms.d.ts').Body<O>} Body */
/** @template {import('./terms.d.ts').OperationId} O @typedef {import('./terms.d.ts').Event<O>} Event */

class Operations {
  /**
   * @param {Transport} transport
   * @param {Record<string, string>} [names] what of the paths of its operations is known
   */
  constructor(transport, names = {}) {
    this._transport = transport
    this._names = names
  }
}

export class ColdframeOperations extends Operations {
  /**
   * Whether the server answers; needs no token and tells nothing else.
   *
   * @param {import('./terms.d.ts').Options<'health_v1_health_get'>} [options]
   * @returns {Promise<Answer<'health_v1_health_get'>>}
   */
  health(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/health' }, { ...this._names }, undefined, options)
  }

  /**
   * Tools with their schemas
   *
   * @param {import('./terms.d.ts').Options<'list_tools'>} [options]
   * @returns {Promise<Answer<'list_tools'>>}
   */
  tools(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/tools' }, { ...this._names }, undefined, options)
  }

  /**
   * Every code that an error or the status of a command can have, with what to do.
   *
   * @param {import('./terms.d.ts').Options<'list_codes_v1_errors_get'>} [options]
   * @returns {Promise<Answer<'list_codes_v1_errors_get'>>}
   */
  errors(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/errors' }, { ...this._names }, undefined, options)
  }

  /**
   * Port, domains and certificate of the edge, by which SDKs of E2B and browsers reach sandboxes.
   *
   * @param {import('./terms.d.ts').Options<'get_edge_v1_edge_get'>} [options]
   * @returns {Promise<Answer<'get_edge_v1_edge_get'>>}
   */
  edge(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/edge' }, { ...this._names }, undefined, options)
  }

  /**
   * The boxes that stand ready for the next sandboxes.
   *
   * @param {import('./terms.d.ts').Options<'pool_v1_pool_get'>} [options]
   * @returns {Promise<Answer<'pool_v1_pool_get'>>}
   */
  pool(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/pool' }, { ...this._names }, undefined, options)
  }

  /**
   * Build a throw-away box and report what holds on this machine.
   *
   * @param {import('./terms.d.ts').Options<'doctor_v1_doctor_get'>} [options]
   * @returns {Promise<Answer<'doctor_v1_doctor_get'>>}
   */
  doctor(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/doctor' }, { ...this._names }, undefined, options)
  }

  /**
   * What is on record of a run, and which outputs were kept.
   *
   * @param {string} once_id
   * @param {import('./terms.d.ts').Options<'get_once_v1_once__once_id__get'>} [options]
   * @returns {Promise<Answer<'get_once_v1_once__once_id__get'>>}
   */
  once(once_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/once/{once_id}' }, { ...this._names, once_id }, undefined, options)
  }

  /**
   * Remove the outputs that were kept.
   *
   * @param {string} once_id
   * @param {import('./terms.d.ts').Options<'forget_once_v1_once__once_id__delete'>} [options]
   * @returns {Promise<Answer<'forget_once_v1_once__once_id__delete'>>}
   */
  forgetOnce(once_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/once/{once_id}' }, { ...this._names, once_id }, undefined, options)
  }

  /**
   * An output that was kept
   *
   * @param {string} once_id
   * @param {string} path
   * @param {import('./terms.d.ts').Options<'get_once_output'>} [options]
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  onceOutput(once_id, path, options = {}) {
    return this._transport.bytes({ method: 'GET', path: '/v1/once/{once_id}/outputs/{path}' }, { ...this._names, once_id, path }, options)
  }

  /**
   * What one call really did.
   *
   * @param {string} receipt_id
   * @param {import('./terms.d.ts').Options<'get_receipt_v1_receipts__receipt_id__get'>} [options]
   * @returns {Promise<Answer<'get_receipt_v1_receipts__receipt_id__get'>>}
   */
  receipt(receipt_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/receipts/{receipt_id}' }, { ...this._names, receipt_id }, undefined, options)
  }

  /**
   * Files that are others after the call of the other receipt than they were after that of the first, by digest.
   *
   * @param {string} receipt_id
   * @param {string} other_id
   * @param {import('./terms.d.ts').Options<'compare_receipts_v1_receipts__receipt_id__diff__other_id__get'>} [options]
   * @returns {Promise<Answer<'compare_receipts_v1_receipts__receipt_id__diff__other_id__get'>>}
   */
  compareReceipts(receipt_id, other_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/receipts/{receipt_id}/diff/{other_id}' }, { ...this._names, receipt_id, other_id }, undefined, options)
  }

  /**
   * One of these files line by line, where what it held is still kept.
   *
   * @param {string} receipt_id
   * @param {string} other_id
   * @param {import('./terms.d.ts').Options<'compare_file_of_receipts_v1_receipts__receipt_id__hunks__other_id__get'>} [options]
   * @returns {Promise<Answer<'compare_file_of_receipts_v1_receipts__receipt_id__hunks__other_id__get'>>}
   */
  compareReceiptsFile(receipt_id, other_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/receipts/{receipt_id}/hunks/{other_id}', query: ['path'] }, { ...this._names, receipt_id, other_id }, undefined, options)
  }

  /**
   * Carry a command out again in a fresh sandbox that begins from what it began from, and tell what came out otherwise.
   * Nothing is written to where it was done first.
   *
   * @param {string} receipt_id
   * @param {Body<'replay_receipt_v1_receipts__receipt_id__replay_post'>} [body]
   * @param {import('./terms.d.ts').Options<'replay_receipt_v1_receipts__receipt_id__replay_post'>} [options]
   * @returns {Promise<Answer<'replay_receipt_v1_receipts__receipt_id__replay_post'>>}
   */
  replay(receipt_id, body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/receipts/{receipt_id}/replay', body: 'application/json' }, { ...this._names, receipt_id }, body, options)
  }
}

export class Sandboxes extends Operations {
  /**
   * Create a sandbox and measure its walls; nothing is left behind if one is missing.
   *
   * @param {Body<'create_sandbox_v1_sandboxes_post'>} [body]
   * @param {import('./terms.d.ts').Options<'create_sandbox_v1_sandboxes_post', 'idempotency_key'>} [options]
   * @returns {Promise<Sandbox>}
   */
  async create(body = {}, options = {}) {
    const told = await this._transport.call({ method: 'POST', path: '/v1/sandboxes', query: ['queue_s'], headers: ['idempotency_key'], body: 'application/json' }, { ...this._names }, body, options)
    return this._transport.makeSandbox(told)
  }

  /**
   * Sandboxes that the caller may see, newest first.
   *
   * @param {import('./terms.d.ts').Options<'list_sandboxes_v1_sandboxes_get'>} [options]
   * @returns {Promise<Sandbox[]>}
   */
  async list(options = {}) {
    const told = await this._transport.call({ method: 'GET', path: '/v1/sandboxes', query: ['state', 'agent_id', 'label', 'created_by', 'min_age_s', 'min_idle_s', 'after', 'limit', 'sort'] }, { ...this._names }, undefined, options)
    return told.map(this._transport.makeSandbox)
  }

  /**
   * End all that fit: by state, agent, maker, age and idle time. One that cannot be ended holds up no other.
   *
   * @param {Body<'terminate_sandboxes_v1_sandboxes_terminate_post'>} [body]
   * @param {import('./terms.d.ts').Options<'terminate_sandboxes_v1_sandboxes_terminate_post'>} [options]
   * @returns {Promise<Answer<'terminate_sandboxes_v1_sandboxes_terminate_post'>>}
   */
  terminateAll(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/terminate', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Get Sandbox
   *
   * @param {string} sandbox_id
   * @param {import('./terms.d.ts').Options<'get_sandbox_v1_sandboxes__sandbox_id__get'>} [options]
   * @returns {Promise<Sandbox>}
   */
  async get(sandbox_id, options = {}) {
    const told = await this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}', query: ['wait_s'] }, { ...this._names, sandbox_id }, undefined, options)
    return this._transport.makeSandbox(told)
  }

  /**
   * The contract that a sandbox would have. Nothing is started; its digest is what creation takes as `contract_sha256`.
   *
   * @param {Body<'plan_contract_v1_contracts_plan_post'>} [body]
   * @param {import('./terms.d.ts').Options<'plan_contract_v1_contracts_plan_post'>} [options]
   * @returns {Promise<Answer<'plan_contract_v1_contracts_plan_post'>>}
   */
  plan(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/contracts/plan', body: 'application/json' }, { ...this._names }, body, options)
  }
}

export class SandboxOperations extends Operations {
  /**
   * End a sandbox and everything that runs in it. The workspace of its agent stays, a temporary one is gone, unless as
   * a snapshot. The answer says what was lost.
   *
   * @param {import('./terms.d.ts').Options<'terminate_sandbox_v1_sandboxes__sandbox_id__delete'>} [options]
   * @returns {Promise<Answer<'terminate_sandbox_v1_sandboxes__sandbox_id__delete'>>}
   */
  terminate(options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/sandboxes/{sandbox_id}', query: ['dry_run', 'snapshot', 'discard'] }, { ...this._names }, undefined, options)
  }

  /**
   * Hold its processes still with their memory and connections, or end them and keep its files.
   *
   * @param {Body<'pause_sandbox_v1_sandboxes__sandbox_id__pause_post'>} [body]
   * @param {import('./terms.d.ts').Options<'pause_sandbox_v1_sandboxes__sandbox_id__pause_post'>} [options]
   * @returns {Promise<Answer<'pause_sandbox_v1_sandboxes__sandbox_id__pause_post'>>}
   */
  pause(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/pause', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Let a paused one go on where it was; start a stopped one.
   *
   * @param {import('./terms.d.ts').Options<'resume_sandbox_v1_sandboxes__sandbox_id__resume_post'>} [options]
   * @returns {Promise<Answer<'resume_sandbox_v1_sandboxes__sandbox_id__resume_post'>>}
   */
  resume(options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/resume' }, { ...this._names }, undefined, options)
  }

  /**
   * End its processes, and keep its files, records and session for `start`. The answer says what was lost.
   *
   * @param {import('./terms.d.ts').Options<'stop_sandbox_v1_sandboxes__sandbox_id__stop_post'>} [options]
   * @returns {Promise<Answer<'stop_sandbox_v1_sandboxes__sandbox_id__stop_post'>>}
   */
  stop(options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/stop', query: ['dry_run'] }, { ...this._names }, undefined, options)
  }

  /**
   * Build a stopped one anew on the same workspace.
   *
   * @param {import('./terms.d.ts').Options<'start_sandbox_v1_sandboxes__sandbox_id__start_post'>} [options]
   * @returns {Promise<Answer<'start_sandbox_v1_sandboxes__sandbox_id__start_post'>>}
   */
  startAgain(options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/start' }, { ...this._names }, undefined, options)
  }

  /**
   * Have no timer act on it for a while. Nothing else gives it more time.
   *
   * @param {Body<'extend_sandbox_v1_sandboxes__sandbox_id__extend_post'>} body
   * @param {import('./terms.d.ts').Options<'extend_sandbox_v1_sandboxes__sandbox_id__extend_post'>} [options]
   * @returns {Promise<Answer<'extend_sandbox_v1_sandboxes__sandbox_id__extend_post'>>}
   */
  extendLife(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/extend', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * The walls, measured now.
   *
   * @param {import('./terms.d.ts').Options<'measure_isolation_v1_sandboxes__sandbox_id__report_get'>} [options]
   * @returns {Promise<Answer<'measure_isolation_v1_sandboxes__sandbox_id__report_get'>>}
   */
  report(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/report' }, { ...this._names }, undefined, options)
  }

  /**
   * What this caller may do here; what is not listed is denied.
   *
   * @param {import('./terms.d.ts').Options<'list_allowed_v1_sandboxes__sandbox_id__allowed_get'>} [options]
   * @returns {Promise<Answer<'list_allowed_v1_sandboxes__sandbox_id__allowed_get'>>}
   */
  allowed(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/allowed' }, { ...this._names }, undefined, options)
  }

  /**
   * Attempts to reach out.
   *
   * @param {import('./terms.d.ts').Options<'list_contacts_v1_sandboxes__sandbox_id__contacts_get'>} [options]
   * @returns {Promise<Answer<'list_contacts_v1_sandboxes__sandbox_id__contacts_get'>>}
   */
  contacts(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/contacts' }, { ...this._names }, undefined, options)
  }

  /**
   * What runs inside now.
   *
   * @param {import('./terms.d.ts').Options<'list_processes_v1_sandboxes__sandbox_id__processes_get'>} [options]
   * @returns {Promise<Answer<'list_processes_v1_sandboxes__sandbox_id__processes_get'>>}
   */
  processes(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/processes' }, { ...this._names }, undefined, options)
  }

  /**
   * Packages of pip, npm and apt: installed, cached, in the template, in a snapshot, and what has drifted since.
   *
   * @param {import('./terms.d.ts').Options<'view_packages_v1_sandboxes__sandbox_id__packages_get'>} [options]
   * @returns {Promise<Answer<'view_packages_v1_sandboxes__sandbox_id__packages_get'>>}
   */
  packages(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/packages', query: ['snapshot'] }, { ...this._names }, undefined, options)
  }

  /**
   * Languages and managers of packages found inside, whether the rules let this caller start them, and how to get the
   * others.
   *
   * @param {import('./terms.d.ts').Options<'list_runtimes_v1_sandboxes__sandbox_id__runtimes_get'>} [options]
   * @returns {Promise<Answer<'list_runtimes_v1_sandboxes__sandbox_id__runtimes_get'>>}
   */
  runtimes(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/runtimes', query: ['measure'] }, { ...this._names }, undefined, options)
  }

  /**
   * Shell sessions of the sandbox, each with the command that runs in it.
   *
   * @param {import('./terms.d.ts').Options<'list_shells_v1_sandboxes__sandbox_id__shells_get'>} [options]
   * @returns {Promise<Answer<'list_shells_v1_sandboxes__sandbox_id__shells_get'>>}
   */
  shells(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/shells' }, { ...this._names }, undefined, options)
  }

  /**
   * Forget a shell session: the next command of that name begins anew.
   *
   * @param {string} name
   * @param {import('./terms.d.ts').Options<'end_shell_v1_sandboxes__sandbox_id__shells__name__delete'>} [options]
   * @returns {Promise<Answer<'end_shell_v1_sandboxes__sandbox_id__shells__name__delete'>>}
   */
  endShell(name, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/sandboxes/{sandbox_id}/shells/{name}' }, { ...this._names, name }, undefined, options)
  }

  /**
   * Processes that listen at a port, with their ports and the command that they belong to.
   *
   * @param {import('./terms.d.ts').Options<'list_ports_v1_sandboxes__sandbox_id__ports_get'>} [options]
   * @returns {Promise<Answer<'list_ports_v1_sandboxes__sandbox_id__ports_get'>>}
   */
  ports(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/ports' }, { ...this._names }, undefined, options)
  }

  /**
   * What commands of the sandbox have in place of secrets. Nothing in one without network, or that has ended.
   *
   * @param {import('./terms.d.ts').Options<'list_handles_v1_sandboxes__sandbox_id__credentials_get'>} [options]
   * @returns {Promise<Answer<'list_handles_v1_sandboxes__sandbox_id__credentials_get'>>}
   */
  credentials(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/credentials' }, { ...this._names }, undefined, options)
  }

  /**
   * Let it go on in a larger profile, under the same id, with its files and its record. There is no way back.
   *
   * @param {Body<'promote_sandbox_v1_sandboxes__sandbox_id__promote_post'>} body
   * @param {import('./terms.d.ts').Options<'promote_sandbox_v1_sandboxes__sandbox_id__promote_post'>} [options]
   * @returns {Promise<Answer<'promote_sandbox_v1_sandboxes__sandbox_id__promote_post'>>}
   */
  promote(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/promote', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * What the agent can do in it, which state remains, and how reliably people can look at the result or take it back.
   *
   * @param {import('./terms.d.ts').Options<'describe_sandbox_v1_sandboxes__sandbox_id__description_get'>} [options]
   * @returns {Promise<Answer<'describe_sandbox_v1_sandboxes__sandbox_id__description_get'>>}
   */
  describe(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/description' }, { ...this._names }, undefined, options)
  }

  /**
   * Files, Git, activity, builds, logs, previews and deployment of the workspace that a sandbox is or was on, each
   * entry linked to its receipt, with what can be done from there. Nothing is started for it.
   *
   * @param {import('./terms.d.ts').Options<'overview_workspace_v1_sandboxes__sandbox_id__overview_get'>} [options]
   * @returns {Promise<Answer<'overview_workspace_v1_sandboxes__sandbox_id__overview_get'>>}
   */
  overview(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/overview' }, { ...this._names }, undefined, options)
  }

  /**
   * In at most 8 KiB: files, recent changes, commands that run or have failed, open ports, notes, essentials of the
   * contract.
   *
   * @param {import('./terms.d.ts').Options<'summarize_workspace_v1_sandboxes__sandbox_id__summary_get'>} [options]
   * @returns {Promise<Answer<'summarize_workspace_v1_sandboxes__sandbox_id__summary_get'>>}
   */
  summary(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/summary' }, { ...this._names }, undefined, options)
  }

  /**
   * Inputs, what is executed, outputs, and what remains at the end.
   *
   * @param {import('./terms.d.ts').Options<'get_contract_v1_sandboxes__sandbox_id__contract_get'>} [options]
   * @returns {Promise<Answer<'get_contract_v1_sandboxes__sandbox_id__contract_get'>>}
   */
  contract(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/contract', query: ['version'] }, { ...this._names }, undefined, options)
  }

  /**
   * What remains when, whose it is, and how much of it there is now.
   *
   * @param {import('./terms.d.ts').Options<'list_items_v1_sandboxes__sandbox_id__persistence_get'>} [options]
   * @returns {Promise<Answer<'list_items_v1_sandboxes__sandbox_id__persistence_get'>>}
   */
  persistence(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/persistence' }, { ...this._names }, undefined, options)
  }

  /**
   * What went in: each version with its source, digest, label, and the time it held.
   *
   * @param {import('./terms.d.ts').Options<'list_inputs_v1_sandboxes__sandbox_id__inputs_get'>} [options]
   * @returns {Promise<Answer<'list_inputs_v1_sandboxes__sandbox_id__inputs_get'>>}
   */
  inputs(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/inputs' }, { ...this._names }, undefined, options)
  }

  /**
   * What the work in a sandbox has left, also when it has ended: files of its workspace, and what commands have
   * printed.
   *
   * @param {import('./terms.d.ts').Options<'list_artifacts_v1_sandboxes__sandbox_id__artifacts_get'>} [options]
   * @returns {Promise<Answer<'list_artifacts_v1_sandboxes__sandbox_id__artifacts_get'>>}
   */
  artifacts(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/artifacts', query: ['kind', 'after', 'limit'] }, { ...this._names }, undefined, options)
  }

  /**
   * Say of what kind something is, where the rules are wrong. It is recorded, and holds for the name in that workspace.
   *
   * @param {Body<'correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post'>} body
   * @param {import('./terms.d.ts').Options<'correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post'>} [options]
   * @returns {Promise<Answer<'correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post'>>}
   */
  correctArtifact(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/artifacts/kind', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * What there is of the outputs that the sandbox was made for, and what was made beside them.
   *
   * @param {import('./terms.d.ts').Options<'find_outputs_v1_sandboxes__sandbox_id__outputs_get'>} [options]
   * @returns {Promise<Answer<'find_outputs_v1_sandboxes__sandbox_id__outputs_get'>>}
   */
  outputs(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/outputs' }, { ...this._names }, undefined, options)
  }

  /**
   * What a place inside belongs to.
   *
   * @param {import('./terms.d.ts').Options<'find_item_v1_sandboxes__sandbox_id__where_get'>} [options]
   * @returns {Promise<Answer<'find_item_v1_sandboxes__sandbox_id__where_get'>>}
   */
  where(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/where', query: ['path'] }, { ...this._names }, undefined, options)
  }

  /**
   * How it stands with the result of a sandbox that is deleted when it was fetched.
   *
   * @param {import('./terms.d.ts').Options<'get_result_v1_sandboxes__sandbox_id__result_get'>} [options]
   * @returns {Promise<Answer<'get_result_v1_sandboxes__sandbox_id__result_get'>>}
   */
  result(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/result' }, { ...this._names }, undefined, options)
  }

  /**
   * Take down what the result is: the declared outputs as they are now.
   *
   * @param {import('./terms.d.ts').Options<'offer_result_v1_sandboxes__sandbox_id__result_post'>} [options]
   * @returns {Promise<Answer<'offer_result_v1_sandboxes__sandbox_id__result_post'>>}
   */
  offerResult(options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/result' }, { ...this._names }, undefined, options)
  }

  /**
   * Delete all that is left of the sandbox, for the digest of what was fetched.
   *
   * @param {Body<'confirm_result_v1_sandboxes__sandbox_id__result_confirm_post'>} body
   * @param {import('./terms.d.ts').Options<'confirm_result_v1_sandboxes__sandbox_id__result_confirm_post'>} [options]
   * @returns {Promise<Answer<'confirm_result_v1_sandboxes__sandbox_id__result_confirm_post'>>}
   */
  confirmResult(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/result/confirm', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Remove a file
   *
   * @param {string} path
   * @param {import('./terms.d.ts').Options<'remove_file', 'session_id'>} [options]
   * @returns {Promise<Answer<'remove_file'>>}
   */
  removeFile(path, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/sandboxes/{sandbox_id}/files/{path}', query: ['recursive'], headers: ['session_id'] }, { ...this._names, path }, undefined, options)
  }

  /**
   * The result of a cell
   *
   * @param {string} cell_id
   * @param {import('./terms.d.ts').Options<'get_cell'>} [options]
   * @returns {Promise<Answer<'get_cell'>>}
   */
  cell(cell_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/cells/{cell_id}', query: ['wait_s'] }, { ...this._names, cell_id }, undefined, options)
  }

  /**
   * Stop a cell that runs. Where it does not let itself be stopped, its kernel is replaced, and its result says so.
   *
   * @param {string} cell_id
   * @param {import('./terms.d.ts').Options<'interrupt_cell_v1_sandboxes__sandbox_id__cells__cell_id__interrupt_post'>} [options]
   * @returns {Promise<Answer<'interrupt_cell_v1_sandboxes__sandbox_id__cells__cell_id__interrupt_post'>>}
   */
  interruptCell(cell_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/cells/{cell_id}/interrupt' }, { ...this._names, cell_id }, undefined, options)
  }

  /**
   * Attach a file
   *
   * @param {Content} body
   * @param {import('./terms.d.ts').Options<'attach_file'>} [options]
   * @returns {Promise<Answer<'attach_file'>>}
   */
  attach(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/attachments', query: ['name', 'source'], body: 'application/octet-stream' }, { ...this._names }, body, options)
  }

  /**
   * Contexts of the sandbox. Those of Python and JavaScript are there without being made.
   *
   * @param {import('./terms.d.ts').Options<'list_contexts_v1_sandboxes__sandbox_id__contexts_get'>} [options]
   * @returns {Promise<Answer<'list_contexts_v1_sandboxes__sandbox_id__contexts_get'>>}
   */
  contexts(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/contexts' }, { ...this._names }, undefined, options)
  }

  /**
   * Make a context of its own variables, and begin to start its kernel.
   *
   * @param {Body<'open_context_v1_sandboxes__sandbox_id__contexts_post'>} [body]
   * @param {import('./terms.d.ts').Options<'open_context_v1_sandboxes__sandbox_id__contexts_post'>} [options]
   * @returns {Promise<Answer<'open_context_v1_sandboxes__sandbox_id__contexts_post'>>}
   */
  openContext(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/contexts', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Begin anew: all that cells have defined is gone, and a cell that runs ends.
   *
   * @param {string} context_id
   * @param {import('./terms.d.ts').Options<'restart_context_v1_sandboxes__sandbox_id__contexts__context_id__restart_post'>} [options]
   * @returns {Promise<Answer<'restart_context_v1_sandboxes__sandbox_id__contexts__context_id__restart_post'>>}
   */
  restartContext(context_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/contexts/{context_id}/restart' }, { ...this._names, context_id }, undefined, options)
  }

  /**
   * End its kernel and forget it. One that is there without being made is there again, as new.
   *
   * @param {string} context_id
   * @param {import('./terms.d.ts').Options<'close_context_v1_sandboxes__sandbox_id__contexts__context_id__delete'>} [options]
   * @returns {Promise<Answer<'close_context_v1_sandboxes__sandbox_id__contexts__context_id__delete'>>}
   */
  closeContext(context_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/sandboxes/{sandbox_id}/contexts/{context_id}' }, { ...this._names, context_id }, undefined, options)
  }

  /**
   * Commands of a sandbox
   *
   * @param {import('./terms.d.ts').Options<'list_commands'>} [options]
   * @returns {Promise<Answer<'list_commands'>>}
   */
  commands(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/commands' }, { ...this._names }, undefined, options)
  }

  /**
   * One command
   *
   * @param {string} command_id
   * @param {import('./terms.d.ts').Options<'get_command'>} [options]
   * @returns {Promise<Answer<'get_command'>>}
   */
  command(command_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/commands/{command_id}', query: ['wait_s'] }, { ...this._names, command_id }, undefined, options)
  }

  /**
   * Signal a command
   *
   * @param {string} command_id
   * @param {Body<'signal_command'>} [body]
   * @param {import('./terms.d.ts').Options<'signal_command'>} [options]
   * @returns {Promise<Answer<'signal_command'>>}
   */
  signal(command_id, body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/commands/{command_id}/signal', body: 'application/json' }, { ...this._names, command_id }, body, options)
  }

  /**
   * Raise or lower limits of a running command, each counted from its start; one that is over already acts at once.
   *
   * @param {string} command_id
   * @param {Body<'change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post'>} [body]
   * @param {import('./terms.d.ts').Options<'change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post'>} [options]
   * @returns {Promise<Answer<'change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post'>>}
   */
  extendCommand(command_id, body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/commands/{command_id}/limits', body: 'application/json' }, { ...this._names, command_id }, body, options)
  }

  /**
   * Resize a terminal
   *
   * @param {string} command_id
   * @param {Body<'resize_terminal'>} body
   * @param {import('./terms.d.ts').Options<'resize_terminal'>} [options]
   * @returns {Promise<Answer<'resize_terminal'>>}
   */
  resize(command_id, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/commands/{command_id}/resize', body: 'application/json' }, { ...this._names, command_id }, body, options)
  }

  /**
   * Take one of the files of a sandbox that runs, is paused or stopped. Its processes stand still meanwhile and go on.
   *
   * @param {Body<'take_snapshot_v1_sandboxes__sandbox_id__snapshots_post'>} [body]
   * @param {import('./terms.d.ts').Options<'take_snapshot_v1_sandboxes__sandbox_id__snapshots_post', 'idempotency_key'>} [options]
   * @returns {Promise<Answer<'take_snapshot_v1_sandboxes__sandbox_id__snapshots_post'>>}
   */
  takeSnapshot(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/snapshots', headers: ['idempotency_key'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * What one taken now would have and leave out, path by path. Nothing is done.
   *
   * @param {import('./terms.d.ts').Options<'plan_snapshot_v1_sandboxes__sandbox_id__snapshots_plan_get'>} [options]
   * @returns {Promise<Answer<'plan_snapshot_v1_sandboxes__sandbox_id__snapshots_plan_get'>>}
   */
  planSnapshot(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/snapshots/plan' }, { ...this._names }, undefined, options)
  }

  /**
   * Take its files back to a snapshot, or to nothing. One that runs is stopped for it and started again, with the same
   * id, session and network. What was before is kept for a day unless it is discarded.
   *
   * @param {Body<'reset_sandbox_v1_sandboxes__sandbox_id__reset_post'>} body
   * @param {import('./terms.d.ts').Options<'reset_sandbox_v1_sandboxes__sandbox_id__reset_post', 'idempotency_key'>} [options]
   * @returns {Promise<Answer<'reset_sandbox_v1_sandboxes__sandbox_id__reset_post'>>}
   */
  reset(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/reset', headers: ['idempotency_key'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Make another sandbox, as the body says, that begins with the files of this one as they are now. Nothing else goes
   * along: no session, credential, network or limit. The agent has to be new.
   *
   * @param {Body<'fork_sandbox_v1_sandboxes__sandbox_id__fork_post'>} [body]
   * @param {import('./terms.d.ts').Options<'fork_sandbox_v1_sandboxes__sandbox_id__fork_post', 'idempotency_key'>} [options]
   * @returns {Promise<Sandbox>}
   */
  async fork(body = {}, options = {}) {
    const told = await this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/fork', headers: ['idempotency_key'], body: 'application/json' }, { ...this._names }, body, options)
    return this._transport.makeSandbox(told)
  }

  /**
   * What a sandbox reached and tried to reach, in the order in which it came on record; also of one that has ended.
   * `host` is a name, an address, or `*.NAME` for all names below it. What goes over the same connection is one
   * contact. With `lookups` also names that were looked up and answered are listed; denied look-ups always are.
   *
   * @param {import('./terms.d.ts').Options<'list_network_v1_sandboxes__sandbox_id__network_get'>} [options]
   * @returns {Promise<Answer<'list_network_v1_sandboxes__sandbox_id__network_get'>>}
   */
  networkLog(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/network', query: ['after', 'limit', 'outcome', 'host', 'command_id', 'lookups'] }, { ...this._names }, undefined, options)
  }

  /**
   * Follow the network of a sandbox
   *
   * @param {import('./terms.d.ts').Options<'follow_network'>} [options]
   * @returns {AsyncGenerator<Event<'follow_network'>, void, undefined>}
   */
  followNetwork(options = {}) {
    return this._transport.events({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/network/events', query: ['after_change', 'outcome', 'host', 'command_id', 'lookups'] }, { ...this._names }, undefined, options)
  }

  /**
   * Run steps one after the other; answers at once. Each step is a command of its own, through the gate.
   *
   * @param {Body<'start_pipeline_v1_sandboxes__sandbox_id__pipelines_post'>} body
   * @param {import('./terms.d.ts').Options<'start_pipeline_v1_sandboxes__sandbox_id__pipelines_post', 'idempotency_key'>} [options]
   * @returns {Promise<Answer<'start_pipeline_v1_sandboxes__sandbox_id__pipelines_post'>>}
   */
  startPipeline(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/pipelines', headers: ['idempotency_key'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * The newest hundred pipelines of the sandbox, oldest first.
   *
   * @param {import('./terms.d.ts').Options<'list_pipelines_v1_sandboxes__sandbox_id__pipelines_get'>} [options]
   * @returns {Promise<Answer<'list_pipelines_v1_sandboxes__sandbox_id__pipelines_get'>>}
   */
  pipelines(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/pipelines' }, { ...this._names }, undefined, options)
  }
}

export class Watch extends Operations {
  /**
   * What a watch noted
   *
   * @param {import('./terms.d.ts').Options<'read_watch'>} [options]
   * @returns {Promise<Answer<'read_watch'>>}
   */
  read(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/watches/{watch_id}', query: ['wait_s'] }, { ...this._names }, undefined, options)
  }

  /**
   * End a watch
   *
   * @param {import('./terms.d.ts').Options<'end_watch'>} [options]
   * @returns {Promise<Answer<'end_watch'>>}
   */
  end(options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/sandboxes/{sandbox_id}/watches/{watch_id}' }, { ...this._names }, undefined, options)
  }

  /**
   * Follow a watch
   *
   * @param {import('./terms.d.ts').Options<'follow_watch'>} [options]
   * @returns {AsyncGenerator<Event<'follow_watch'>, void, undefined>}
   */
  events(options = {}) {
    return this._transport.events({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/watches/{watch_id}/events' }, { ...this._names }, undefined, options)
  }
}

export class Pipeline extends Operations {
  /**
   * How it and each of its steps stands; with `wait_s`, as soon as it is over, or after that time as it is then.
   *
   * @param {import('./terms.d.ts').Options<'get_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__get'>} [options]
   * @returns {Promise<Answer<'get_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__get'>>}
   */
  info(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/pipelines/{pipeline_id}', query: ['wait_s'] }, { ...this._names }, undefined, options)
  }

  /**
   * Run again what did not succeed, or the steps that are named. What succeeded is left as it is.
   *
   * @param {Body<'rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post'>} [body]
   * @param {import('./terms.d.ts').Options<'rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post'>} [options]
   * @returns {Promise<Answer<'rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post'>>}
   */
  rerun(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/pipelines/{pipeline_id}/rerun', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Start no further step, and end the one that runs.
   *
   * @param {import('./terms.d.ts').Options<'cancel_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__cancel_post'>} [options]
   * @returns {Promise<Answer<'cancel_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__cancel_post'>>}
   */
  cancel(options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/pipelines/{pipeline_id}/cancel' }, { ...this._names }, undefined, options)
  }
}

export class Snapshots extends Operations {
  /**
   * Snapshots that the caller may see, newest first.
   *
   * @param {import('./terms.d.ts').Options<'list_snapshots_v1_snapshots_get'>} [options]
   * @returns {Promise<Answer<'list_snapshots_v1_snapshots_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/snapshots', query: ['sandbox_id', 'agent_id', 'reason', 'label', 'after', 'limit'] }, { ...this._names }, undefined, options)
  }

  /**
   * Import a snapshot
   *
   * @param {Content} body
   * @param {import('./terms.d.ts').Options<'import_snapshot', 'idempotency_key'>} [options]
   * @returns {Promise<Answer<'import_snapshot'>>}
   */
  importArchive(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/snapshots', query: ['name', 'label', 'expires_in_s', 'expected'], headers: ['idempotency_key'], body: 'application/octet-stream' }, { ...this._names }, body, options)
  }

  /**
   * Get Snapshot
   *
   * @param {string} snapshot_id
   * @param {import('./terms.d.ts').Options<'get_snapshot_v1_snapshots__snapshot_id__get'>} [options]
   * @returns {Promise<Answer<'get_snapshot_v1_snapshots__snapshot_id__get'>>}
   */
  get(snapshot_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/snapshots/{snapshot_id}' }, { ...this._names, snapshot_id }, undefined, options)
  }

  /**
   * Forget one. Sandboxes that were forked from it, or went back to it, go on.
   *
   * @param {string} snapshot_id
   * @param {import('./terms.d.ts').Options<'remove_snapshot_v1_snapshots__snapshot_id__delete'>} [options]
   * @returns {Promise<Answer<'remove_snapshot_v1_snapshots__snapshot_id__delete'>>}
   */
  remove(snapshot_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/snapshots/{snapshot_id}', repeatable: true }, { ...this._names, snapshot_id }, undefined, options)
  }

  /**
   * Rename Snapshot
   *
   * @param {string} snapshot_id
   * @param {Body<'rename_snapshot_v1_snapshots__snapshot_id__name_put'>} body
   * @param {import('./terms.d.ts').Options<'rename_snapshot_v1_snapshots__snapshot_id__name_put'>} [options]
   * @returns {Promise<Answer<'rename_snapshot_v1_snapshots__snapshot_id__name_put'>>}
   */
  rename(snapshot_id, body, options = {}) {
    return this._transport.call({ method: 'PUT', path: '/v1/snapshots/{snapshot_id}/name', body: 'application/json', repeatable: true }, { ...this._names, snapshot_id }, body, options)
  }

  /**
   * Export a snapshot
   *
   * @param {string} snapshot_id
   * @param {import('./terms.d.ts').Options<'export_snapshot'>} [options]
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  export(snapshot_id, options = {}) {
    return this._transport.bytes({ method: 'GET', path: '/v1/snapshots/{snapshot_id}/archive' }, { ...this._names, snapshot_id }, options)
  }

  /**
   * What differs between two points, by path: ids of snapshots, or of sandboxes for what they have now.
   *
   * @param {string} before
   * @param {string} after
   * @param {import('./terms.d.ts').Options<'compare_points_v1_compare__before___after__get'>} [options]
   * @returns {Promise<Answer<'compare_points_v1_compare__before___after__get'>>}
   */
  compare(before, after, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/compare/{before}/{after}', query: ['sandbox_id', 'next_after', 'limit', 'part'] }, { ...this._names, before, after }, undefined, options)
  }

  /**
   * Compare a file
   *
   * @param {string} before
   * @param {string} after
   * @param {string} path
   * @param {import('./terms.d.ts').Options<'compare_file'>} [options]
   * @returns {Promise<Answer<'compare_file'>>}
   */
  compareFile(before, after, path, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/compare/{before}/{after}/files/{path}', query: ['sandbox_id'] }, { ...this._names, before, after, path }, undefined, options)
  }
}

export class Volumes extends Operations {
  /**
   * Make a volume, empty.
   *
   * @param {Body<'create_volume_v1_volumes_post'>} body
   * @param {import('./terms.d.ts').Options<'create_volume_v1_volumes_post'>} [options]
   * @returns {Promise<Answer<'create_volume_v1_volumes_post'>>}
   */
  create(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/volumes', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Volumes that the caller may see, by name, with who has them.
   *
   * @param {import('./terms.d.ts').Options<'list_volumes_v1_volumes_get'>} [options]
   * @returns {Promise<Answer<'list_volumes_v1_volumes_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/volumes' }, { ...this._names }, undefined, options)
  }

  /**
   * One of them, with how full it is.
   *
   * @param {string} name
   * @param {import('./terms.d.ts').Options<'get_volume_v1_volumes__name__get'>} [options]
   * @returns {Promise<Answer<'get_volume_v1_volumes__name__get'>>}
   */
  get(name, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/volumes/{name}' }, { ...this._names, name }, undefined, options)
  }

  /**
   * Remove it with all its files, for good; only while no sandbox has it, or is to have it when it starts again.
   *
   * @param {string} name
   * @param {import('./terms.d.ts').Options<'remove_volume_v1_volumes__name__delete'>} [options]
   * @returns {Promise<Answer<'remove_volume_v1_volumes__name__delete'>>}
   */
  remove(name, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/volumes/{name}' }, { ...this._names, name }, undefined, options)
  }

  /**
   * Let sandboxes of an agent have it, whoever makes them.
   *
   * @param {string} name
   * @param {Body<'grant_volume_v1_volumes__name__grants_post'>} body
   * @param {import('./terms.d.ts').Options<'grant_volume_v1_volumes__name__grants_post'>} [options]
   * @returns {Promise<Answer<'grant_volume_v1_volumes__name__grants_post'>>}
   */
  grant(name, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/volumes/{name}/grants', body: 'application/json' }, { ...this._names, name }, body, options)
  }

  /**
   * Take a grant back. Sandboxes that have the volume keep it until they stop.
   *
   * @param {string} name
   * @param {string} agent_id
   * @param {import('./terms.d.ts').Options<'revoke_volume_v1_volumes__name__grants__agent_id__delete'>} [options]
   * @returns {Promise<Answer<'revoke_volume_v1_volumes__name__grants__agent_id__delete'>>}
   */
  revoke(name, agent_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/volumes/{name}/grants/{agent_id}' }, { ...this._names, name, agent_id }, undefined, options)
  }

  /**
   * What is in it, whether a sandbox has it or not. Nothing is started.
   *
   * @param {string} name
   * @param {import('./terms.d.ts').Options<'list_volume_files_v1_volumes__name__files_get'>} [options]
   * @returns {Promise<Answer<'list_volume_files_v1_volumes__name__files_get'>>}
   */
  listFiles(name, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/volumes/{name}/files', query: ['path', 'recursive'] }, { ...this._names, name }, undefined, options)
  }

  /**
   * Download a file of a volume
   *
   * @param {string} name
   * @param {string} path
   * @param {import('./terms.d.ts').Options<'download_volume_file'>} [options]
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  download(name, path, options = {}) {
    return this._transport.bytes({ method: 'GET', path: '/v1/volumes/{name}/files/{path}' }, { ...this._names, name, path }, options)
  }

  /**
   * Upload a file to a volume
   *
   * @param {string} name
   * @param {string} path
   * @param {Content} body
   * @param {import('./terms.d.ts').Options<'upload_volume_file'>} [options]
   * @returns {Promise<Answer<'upload_volume_file'>>}
   */
  upload(name, path, body, options = {}) {
    return this._transport.call({ method: 'PUT', path: '/v1/volumes/{name}/files/{path}', query: ['label'], body: 'application/octet-stream' }, { ...this._names, name, path }, body, options)
  }

  /**
   * Remove a file of a volume
   *
   * @param {string} name
   * @param {string} path
   * @param {import('./terms.d.ts').Options<'remove_volume_file'>} [options]
   * @returns {Promise<Answer<'remove_volume_file'>>}
   */
  removeFile(name, path, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/volumes/{name}/files/{path}', query: ['recursive'] }, { ...this._names, name, path }, undefined, options)
  }
}

export class Templates extends Operations {
  /**
   * Which of these bytes have to be uploaded before a build.
   *
   * @param {Body<'find_missing_inputs_v1_template_inputs_missing_post'>} body
   * @param {import('./terms.d.ts').Options<'find_missing_inputs_v1_template_inputs_missing_post'>} [options]
   * @returns {Promise<Answer<'find_missing_inputs_v1_template_inputs_missing_post'>>}
   */
  missingInputs(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/template-inputs/missing', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Upload an input of a build
   *
   * @param {string} sha256
   * @param {Content} body
   * @param {import('./terms.d.ts').Options<'upload_input'>} [options]
   * @returns {Promise<Answer<'upload_input'>>}
   */
  uploadInput(sha256, body, options = {}) {
    return this._transport.call({ method: 'PUT', path: '/v1/template-inputs/{sha256}', body: 'application/octet-stream' }, { ...this._names, sha256 }, body, options)
  }

  /**
   * Begin to build a template; answers at once. Its files have to be uploaded before.
   *
   * @param {Body<'build_template_v1_template_builds_post'>} body
   * @param {import('./terms.d.ts').Options<'build_template_v1_template_builds_post', 'idempotency_key'>} [options]
   * @returns {Promise<Answer<'build_template_v1_template_builds_post'>>}
   */
  build(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/template-builds', headers: ['idempotency_key'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * The newest hundred builds, newest first.
   *
   * @param {import('./terms.d.ts').Options<'list_builds_v1_template_builds_get'>} [options]
   * @returns {Promise<Answer<'list_builds_v1_template_builds_get'>>}
   */
  builds(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/template-builds', query: ['name'] }, { ...this._names }, undefined, options)
  }

  /**
   * All templates, or those of a name, newest first.
   *
   * @param {import('./terms.d.ts').Options<'list_templates_v1_templates_get'>} [options]
   * @returns {Promise<Answer<'list_templates_v1_templates_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/templates', query: ['name'] }, { ...this._names }, undefined, options)
  }

  /**
   * One template with its packages, and the recipe that builds just that again.
   *
   * @param {string} template
   * @param {import('./terms.d.ts').Options<'get_template_v1_templates__template__get'>} [options]
   * @returns {Promise<Answer<'get_template_v1_templates__template__get'>>}
   */
  get(template, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/templates/{template}' }, { ...this._names, template }, undefined, options)
  }

  /**
   * Forget one that nothing stands on. Its version stays taken.
   *
   * @param {string} template
   * @param {import('./terms.d.ts').Options<'remove_template_v1_templates__template__delete'>} [options]
   * @returns {Promise<Answer<'remove_template_v1_templates__template__delete'>>}
   */
  remove(template, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/templates/{template}' }, { ...this._names, template }, undefined, options)
  }

  /**
   * Names of versions that move, of one template.
   *
   * @param {string} template
   * @param {import('./terms.d.ts').Options<'list_template_tags_v1_templates__template__tags_get'>} [options]
   * @returns {Promise<Answer<'list_template_tags_v1_templates__template__tags_get'>>}
   */
  tags(template, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/templates/{template}/tags' }, { ...this._names, template }, undefined, options)
  }

  /**
   * Have tags stand for this version from now on, in place of those that they stood for. Returns all tags of the name.
   *
   * @param {string} template
   * @param {Body<'tag_template_v1_templates__template__tags_post'>} body
   * @param {import('./terms.d.ts').Options<'tag_template_v1_templates__template__tags_post'>} [options]
   * @returns {Promise<Answer<'tag_template_v1_templates__template__tags_post'>>}
   */
  tag(template, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/templates/{template}/tags', body: 'application/json' }, { ...this._names, template }, body, options)
  }

  /**
   * Take tags away; those that are not there are gone already. Returns those that are left.
   *
   * @param {string} template
   * @param {Body<'untag_template_v1_templates__template__untag_post'>} body
   * @param {import('./terms.d.ts').Options<'untag_template_v1_templates__template__untag_post'>} [options]
   * @returns {Promise<Answer<'untag_template_v1_templates__template__untag_post'>>}
   */
  untag(template, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/templates/{template}/untag', body: 'application/json' }, { ...this._names, template }, body, options)
  }

  /**
   * Read all of it, and refuse if it is not what was built.
   *
   * @param {string} template
   * @param {import('./terms.d.ts').Options<'verify_template_v1_templates__template__verify_post'>} [options]
   * @returns {Promise<Answer<'verify_template_v1_templates__template__verify_post'>>}
   */
  verify(template, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/templates/{template}/verify' }, { ...this._names, template }, undefined, options)
  }

  /**
   * Run a check in a fresh sandbox of it, and mark it as known good if that passes.
   *
   * @param {string} template
   * @param {Body<'mark_template_v1_templates__template__mark_post'>} body
   * @param {import('./terms.d.ts').Options<'mark_template_v1_templates__template__mark_post'>} [options]
   * @returns {Promise<Answer<'mark_template_v1_templates__template__mark_post'>>}
   */
  mark(template, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/templates/{template}/mark', body: 'application/json' }, { ...this._names, template }, body, options)
  }

  /**
   * Let nothing new start from it. Sandboxes that run on it go on, and are told.
   *
   * @param {string} template
   * @param {Body<'withdraw_template_v1_templates__template__withdraw_post'>} body
   * @param {import('./terms.d.ts').Options<'withdraw_template_v1_templates__template__withdraw_post'>} [options]
   * @returns {Promise<Answer<'withdraw_template_v1_templates__template__withdraw_post'>>}
   */
  withdraw(template, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/templates/{template}/withdraw', body: 'application/json' }, { ...this._names, template }, body, options)
  }
}

export class TemplateBuild extends Operations {
  /**
   * How a build stands; with `wait_s`, as soon as it is over, or after that time as it is then.
   *
   * @param {import('./terms.d.ts').Options<'get_build_v1_template_builds__build_id__get'>} [options]
   * @returns {Promise<Answer<'get_build_v1_template_builds__build_id__get'>>}
   */
  info(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/template-builds/{build_id}', query: ['wait_s'] }, { ...this._names }, undefined, options)
  }

  /**
   * What a build has said after line `after_seq`; with `wait_s`, as soon as there is something, or it is over.
   *
   * @param {import('./terms.d.ts').Options<'read_build_log_v1_template_builds__build_id__log_get'>} [options]
   * @returns {Promise<Answer<'read_build_log_v1_template_builds__build_id__log_get'>>}
   */
  log(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/template-builds/{build_id}/log', query: ['after_seq', 'limit', 'wait_s'] }, { ...this._names }, undefined, options)
  }

  /**
   * End a build. The steps that are whole are kept for the next one.
   *
   * @param {import('./terms.d.ts').Options<'cancel_build_v1_template_builds__build_id__cancel_post'>} [options]
   * @returns {Promise<Answer<'cancel_build_v1_template_builds__build_id__cancel_post'>>}
   */
  cancel(options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/template-builds/{build_id}/cancel' }, { ...this._names }, undefined, options)
  }
}

export class Previews extends Operations {
  /**
   * Share a port of a sandbox, and start what serves on it if that is said.
   *
   * @param {string} sandbox_id
   * @param {Body<'create_preview_v1_sandboxes__sandbox_id__previews_post'>} body
   * @param {import('./terms.d.ts').Options<'create_preview_v1_sandboxes__sandbox_id__previews_post'>} [options]
   * @returns {Promise<Answer<'create_preview_v1_sandboxes__sandbox_id__previews_post'>>}
   */
  create(sandbox_id, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/previews', body: 'application/json' }, { ...this._names, sandbox_id }, body, options)
  }

  /**
   * Previews that a sandbox serves, newest first, those that were taken back too.
   *
   * @param {string} sandbox_id
   * @param {import('./terms.d.ts').Options<'list_sandbox_previews_v1_sandboxes__sandbox_id__previews_get'>} [options]
   * @returns {Promise<Answer<'list_sandbox_previews_v1_sandboxes__sandbox_id__previews_get'>>}
   */
  listOfSandbox(sandbox_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/previews' }, { ...this._names, sandbox_id }, undefined, options)
  }

  /**
   * All previews that the caller may see.
   *
   * @param {import('./terms.d.ts').Options<'list_previews_v1_previews_get'>} [options]
   * @returns {Promise<Answer<'list_previews_v1_previews_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/previews' }, { ...this._names }, undefined, options)
  }

  /**
   * One of them, with how it stands now, why, and the end of its log.
   *
   * @param {string} preview_id
   * @param {import('./terms.d.ts').Options<'get_preview_v1_previews__preview_id__get'>} [options]
   * @returns {Promise<Answer<'get_preview_v1_previews__preview_id__get'>>}
   */
  get(preview_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/previews/{preview_id}' }, { ...this._names, preview_id }, undefined, options)
  }

  /**
   * Share it otherwise. Whoever would not be let in now is sent away at once.
   *
   * @param {string} preview_id
   * @param {Body<'change_preview_v1_previews__preview_id__patch'>} [body]
   * @param {import('./terms.d.ts').Options<'change_preview_v1_previews__preview_id__patch'>} [options]
   * @returns {Promise<Answer<'change_preview_v1_previews__preview_id__patch'>>}
   */
  change(preview_id, body = {}, options = {}) {
    return this._transport.call({ method: 'PATCH', path: '/v1/previews/{preview_id}', body: 'application/json' }, { ...this._names, preview_id }, body, options)
  }

  /**
   * Take it back. What serves goes on.
   *
   * @param {string} preview_id
   * @param {import('./terms.d.ts').Options<'revoke_preview_v1_previews__preview_id__delete'>} [options]
   * @returns {Promise<Answer<'revoke_preview_v1_previews__preview_id__delete'>>}
   */
  revoke(preview_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/previews/{preview_id}' }, { ...this._names, preview_id }, undefined, options)
  }

  /**
   * A link that opens it in one browser, once, within ten minutes.
   *
   * @param {string} preview_id
   * @param {import('./terms.d.ts').Options<'link_preview_v1_previews__preview_id__link_post'>} [options]
   * @returns {Promise<Answer<'link_preview_v1_previews__preview_id__link_post'>>}
   */
  link(preview_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/previews/{preview_id}/link', query: ['role', 'expires_in_s'] }, { ...this._names, preview_id }, undefined, options)
  }

  /**
   * End what serves; the address stays.
   *
   * @param {string} preview_id
   * @param {import('./terms.d.ts').Options<'stop_preview_v1_previews__preview_id__stop_post'>} [options]
   * @returns {Promise<Answer<'stop_preview_v1_previews__preview_id__stop_post'>>}
   */
  stop(preview_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/previews/{preview_id}/stop' }, { ...this._names, preview_id }, undefined, options)
  }

  /**
   * Wake its sandbox, and start what serves again; answers when it does.
   *
   * @param {string} preview_id
   * @param {Body<'restart_preview_v1_previews__preview_id__restart_post'>} [body]
   * @param {import('./terms.d.ts').Options<'restart_preview_v1_previews__preview_id__restart_post'>} [options]
   * @returns {Promise<Answer<'restart_preview_v1_previews__preview_id__restart_post'>>}
   */
  restart(preview_id, body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/previews/{preview_id}/restart', body: 'application/json' }, { ...this._names, preview_id }, body, options)
  }

  /**
   * Make it again on another sandbox from what is on record, and have the address lead there.
   *
   * @param {string} preview_id
   * @param {Body<'rebuild_preview_v1_previews__preview_id__rebuild_post'>} [body]
   * @param {import('./terms.d.ts').Options<'rebuild_preview_v1_previews__preview_id__rebuild_post'>} [options]
   * @returns {Promise<Answer<'rebuild_preview_v1_previews__preview_id__rebuild_post'>>}
   */
  rebuild(preview_id, body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/previews/{preview_id}/rebuild', body: 'application/json' }, { ...this._names, preview_id }, body, options)
  }

  /**
   * The end of what it has printed.
   *
   * @param {string} preview_id
   * @param {import('./terms.d.ts').Options<'read_preview_log_v1_previews__preview_id__log_get'>} [options]
   * @returns {Promise<Answer<'read_preview_log_v1_previews__preview_id__log_get'>>}
   */
  log(preview_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/previews/{preview_id}/log', query: ['lines'] }, { ...this._names, preview_id }, undefined, options)
  }
}

export class Network extends Operations {
  /**
   * Contacts of all sandboxes; with `lookups` also names that were looked up and answered.
   *
   * @param {import('./terms.d.ts').Options<'search_network_v1_network_get'>} [options]
   * @returns {Promise<Answer<'search_network_v1_network_get'>>}
   */
  search(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/network', query: ['after', 'limit', 'outcome', 'host', 'since', 'until', 'agent_id', 'sandbox_id', 'lookups'] }, { ...this._names }, undefined, options)
  }

  /**
   * Which sandboxes reached something, or tried to; whoever was there last first. `after` and `lookups` have no meaning
   * here.
   *
   * @param {import('./terms.d.ts').Options<'list_reached_by_v1_network_sandboxes_get'>} [options]
   * @returns {Promise<Answer<'list_reached_by_v1_network_sandboxes_get'>>}
   */
  sandboxes(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/network/sandboxes', query: ['after', 'limit', 'outcome', 'host', 'since', 'until', 'agent_id', 'sandbox_id', 'lookups'] }, { ...this._names }, undefined, options)
  }
}

export class Lineage extends Operations {
  /**
   * What was reached, read, printed and written, in the order in which it came on record.
   * `endpoint` is a name or an address, also with a port; `label` is this one or a higher.
   *
   * @param {import('./terms.d.ts').Options<'list_lineage_v1_lineage_get'>} [options]
   * @returns {Promise<Answer<'list_lineage_v1_lineage_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/lineage', query: ['after', 'limit', 'session_id', 'agent_id', 'sandbox_id', 'path', 'sha256', 'endpoint', 'label'] }, { ...this._names }, undefined, options)
  }

  /**
   * One item.
   *
   * @param {string} item_id
   * @param {import('./terms.d.ts').Options<'get_lineage_v1_lineage__item_id__get'>} [options]
   * @returns {Promise<Answer<'get_lineage_v1_lineage__item_id__get'>>}
   */
  get(item_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/lineage/{item_id}' }, { ...this._names, item_id }, undefined, options)
  }

  /**
   * All generations of what an item or a call may have come from, or gone to; with `known` only what is on record.
   * The id is that of an item, a call, a command or a receipt.
   *
   * @param {string} item_id
   * @param {import('./terms.d.ts').Options<'trace_lineage_v1_lineage__item_id__trace_get'>} [options]
   * @returns {Promise<Answer<'trace_lineage_v1_lineage__item_id__trace_get'>>}
   */
  trace(item_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/lineage/{item_id}/trace', query: ['direction', 'known', 'after', 'limit'] }, { ...this._names, item_id }, undefined, options)
  }
}

export class Agents extends Operations {
  /**
   * Make an agent with its workspace, or return the one there is.
   *
   * @param {Body<'create_agent_v1_agents_post'>} body
   * @param {import('./terms.d.ts').Options<'create_agent_v1_agents_post'>} [options]
   * @returns {Promise<Answer<'create_agent_v1_agents_post'>>}
   */
  create(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/agents', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * List Agents
   *
   * @param {import('./terms.d.ts').Options<'list_agents_v1_agents_get'>} [options]
   * @returns {Promise<Answer<'list_agents_v1_agents_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/agents' }, { ...this._names }, undefined, options)
  }

  /**
   * Get Agent
   *
   * @param {string} agent_id
   * @param {import('./terms.d.ts').Options<'get_agent_v1_agents__agent_id__get'>} [options]
   * @returns {Promise<Answer<'get_agent_v1_agents__agent_id__get'>>}
   */
  get(agent_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/agents/{agent_id}' }, { ...this._names, agent_id }, undefined, options)
  }

  /**
   * Delete the workspace; refused while a sandbox runs on it. The ledger keeps all it has.
   *
   * @param {string} agent_id
   * @param {import('./terms.d.ts').Options<'delete_agent_v1_agents__agent_id__delete'>} [options]
   * @returns {Promise<Answer<'delete_agent_v1_agents__agent_id__delete'>>}
   */
  delete(agent_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/agents/{agent_id}' }, { ...this._names, agent_id }, undefined, options)
  }

  /**
   * Set the label of a workspace, also downward; owner and admin only, with a reason, recorded.
   *
   * @param {string} agent_id
   * @param {Body<'set_label_v1_agents__agent_id__label_put'>} body
   * @param {import('./terms.d.ts').Options<'set_label_v1_agents__agent_id__label_put'>} [options]
   * @returns {Promise<Answer<'set_label_v1_agents__agent_id__label_put'>>}
   */
  setLabel(agent_id, body, options = {}) {
    return this._transport.call({ method: 'PUT', path: '/v1/agents/{agent_id}/label', body: 'application/json' }, { ...this._names, agent_id }, body, options)
  }

  /**
   * Empty the `scratch` directory and touch nothing else.
   *
   * @param {string} agent_id
   * @param {import('./terms.d.ts').Options<'clean_scratch_v1_agents__agent_id__scratch_clean_post'>} [options]
   * @returns {Promise<Answer<'clean_scratch_v1_agents__agent_id__scratch_clean_post'>>}
   */
  cleanScratch(agent_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/agents/{agent_id}/scratch/clean' }, { ...this._names, agent_id }, undefined, options)
  }
}

export class Sessions extends Operations {
  /**
   * One session with its taint.
   *
   * @param {string} session_id
   * @param {import('./terms.d.ts').Options<'get_session_v1_sessions__session_id__get'>} [options]
   * @returns {Promise<Answer<'get_session_v1_sessions__session_id__get'>>}
   */
  get(session_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sessions/{session_id}' }, { ...this._names, session_id }, undefined, options)
  }

  /**
   * Archive the session and open a new one at PUBLIC. The label of the workspace stays.
   *
   * @param {string} session_id
   * @param {import('./terms.d.ts').Options<'reset_session_v1_sessions__session_id__reset_post'>} [options]
   * @returns {Promise<Answer<'reset_session_v1_sessions__session_id__reset_post'>>}
   */
  reset(session_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sessions/{session_id}/reset' }, { ...this._names, session_id }, undefined, options)
  }
}

export class Ledger extends Operations {
  /**
   * Entries after a sequence number, in order.
   *
   * @param {import('./terms.d.ts').Options<'list_entries_v1_ledger_entries_get'>} [options]
   * @returns {Promise<Answer<'list_entries_v1_ledger_entries_get'>>}
   */
  entries(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/ledger/entries', query: ['after', 'limit', 'kind', 'subject', 'sandbox_id', 'agent_id'] }, { ...this._names }, undefined, options)
  }

  /**
   * Recompute the whole chain and compare it with the checkpoints kept apart.
   *
   * @param {import('./terms.d.ts').Options<'verify_ledger_v1_ledger_verify_get'>} [options]
   * @returns {Promise<Answer<'verify_ledger_v1_ledger_verify_get'>>}
   */
  verify(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/ledger/verify' }, { ...this._names }, undefined, options)
  }

  /**
   * The whole ledger
   *
   * @param {import('./terms.d.ts').Options<'export_ledger'>} [options]
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  export(options = {}) {
    return this._transport.bytes({ method: 'GET', path: '/v1/ledger/export' }, { ...this._names }, options)
  }
}

export class Policy extends Operations {
  /**
   * Rules in force
   *
   * @param {import('./terms.d.ts').Options<'show_policy'>} [options]
   * @returns {Promise<Answer<'show_policy'>>}
   */
  show(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/policy' }, { ...this._names }, undefined, options)
  }

  /**
   * Load rules
   *
   * @param {string} body
   * @param {import('./terms.d.ts').Options<'load_policy'>} [options]
   * @returns {Promise<Answer<'load_policy'>>}
   */
  load(body, options = {}) {
    return this._transport.call({ method: 'PUT', path: '/v1/policy', query: ['reason'], body: 'application/yaml' }, { ...this._names }, body, options)
  }

  /**
   * Who changed the rules, when and why, and from which version to which; the first change first.
   *
   * @param {import('./terms.d.ts').Options<'list_policy_changes_v1_policy_log_get'>} [options]
   * @returns {Promise<Answer<'list_policy_changes_v1_policy_log_get'>>}
   */
  log(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/policy/log', query: ['after', 'limit'] }, { ...this._names }, undefined, options)
  }

  /**
   * Rules of a version
   *
   * @param {string} sha256
   * @param {import('./terms.d.ts').Options<'show_past_policy'>} [options]
   * @returns {Promise<Answer<'show_past_policy'>>}
   */
  version(sha256, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/policy/versions/{sha256}' }, { ...this._names, sha256 }, undefined, options)
  }

  /**
   * A stored decision beside the same one recomputed from its stored context and rules.
   *
   * @param {string} seq
   * @param {import('./terms.d.ts').Options<'replay_decision_v1_policy_replay__seq__get'>} [options]
   * @returns {Promise<Answer<'replay_decision_v1_policy_replay__seq__get'>>}
   */
  replay(seq, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/policy/replay/{seq}' }, { ...this._names, seq }, undefined, options)
  }

  /**
   * The decision that this call would get now. Nothing is run.
   *
   * @param {Body<'check_call_v1_policy_check_post'>} body
   * @param {import('./terms.d.ts').Options<'check_call_v1_policy_check_post'>} [options]
   * @returns {Promise<Answer<'check_call_v1_policy_check_post'>>}
   */
  check(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/policy/check', body: 'application/json' }, { ...this._names }, body, options)
  }
}

export class Tokens extends Operations {
  /**
   * Tokens without their secrets.
   *
   * @param {import('./terms.d.ts').Options<'list_tokens_v1_tokens_get'>} [options]
   * @returns {Promise<Answer<'list_tokens_v1_tokens_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/tokens' }, { ...this._names }, undefined, options)
  }

  /**
   * Make a token. The secret is in this answer and nowhere else.
   *
   * @param {Body<'create_token_v1_tokens_post'>} body
   * @param {import('./terms.d.ts').Options<'create_token_v1_tokens_post'>} [options]
   * @returns {Promise<Answer<'create_token_v1_tokens_post'>>}
   */
  create(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/tokens', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Make a token worthless at once.
   *
   * @param {string} token_id
   * @param {import('./terms.d.ts').Options<'revoke_token_v1_tokens__token_id__delete'>} [options]
   * @returns {Promise<Answer<'revoke_token_v1_tokens__token_id__delete'>>}
   */
  revoke(token_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/tokens/{token_id}' }, { ...this._names, token_id }, undefined, options)
  }
}

export class Credentials extends Operations {
  /**
   * All credentials without their secrets, those that were revoked too.
   *
   * @param {import('./terms.d.ts').Options<'list_credentials_v1_credentials_get'>} [options]
   * @returns {Promise<Answer<'list_credentials_v1_credentials_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/credentials' }, { ...this._names }, undefined, options)
  }

  /**
   * Keep a secret for sandboxes to use without seeing it. Nothing gives it out again.
   *
   * @param {Body<'add_credential_v1_credentials_post'>} body
   * @param {import('./terms.d.ts').Options<'add_credential_v1_credentials_post'>} [options]
   * @returns {Promise<Answer<'add_credential_v1_credentials_post'>>}
   */
  add(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/credentials', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * One credential, without its secret.
   *
   * @param {string} name
   * @param {import('./terms.d.ts').Options<'get_credential_v1_credentials__name__get'>} [options]
   * @returns {Promise<Answer<'get_credential_v1_credentials__name__get'>>}
   */
  get(name, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/credentials/{name}' }, { ...this._names, name }, undefined, options)
  }

  /**
   * Take it back at once: the secret is removed, and what was under way with it is broken off.
   *
   * @param {string} name
   * @param {import('./terms.d.ts').Options<'revoke_credential_v1_credentials__name__delete'>} [options]
   * @returns {Promise<Answer<'revoke_credential_v1_credentials__name__delete'>>}
   */
  revoke(name, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/credentials/{name}' }, { ...this._names, name }, undefined, options)
  }

  /**
   * Put another secret in place of the one before, from the next request on; handles stay.
   *
   * @param {string} name
   * @param {Body<'rotate_credential_v1_credentials__name__rotate_post'>} body
   * @param {import('./terms.d.ts').Options<'rotate_credential_v1_credentials__name__rotate_post'>} [options]
   * @returns {Promise<Answer<'rotate_credential_v1_credentials__name__rotate_post'>>}
   */
  rotate(name, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/credentials/{name}/rotate', body: 'application/json' }, { ...this._names, name }, body, options)
  }

  /**
   * What it was used for, and what for in vain, in order.
   *
   * @param {string} name
   * @param {import('./terms.d.ts').Options<'list_credential_uses_v1_credentials__name__uses_get'>} [options]
   * @returns {Promise<Answer<'list_credential_uses_v1_credentials__name__uses_get'>>}
   */
  uses(name, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/credentials/{name}/uses', query: ['after', 'limit'] }, { ...this._names, name }, undefined, options)
  }
}

export class Git extends Operations {
  /**
   * What is not as the last commit has it, and what is under way. Nothing of Git is run.
   *
   * @param {import('./terms.d.ts').Options<'git_status_v1_sandboxes__sandbox_id__git_status_get', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_status_v1_sandboxes__sandbox_id__git_status_get'>>}
   */
  status(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/git/status', query: ['path', 'snapshot', 'limit'], headers: ['session_id'] }, { ...this._names }, undefined, options)
  }

  /**
   * Commits, newest first. Nothing of Git is run.
   *
   * @param {import('./terms.d.ts').Options<'git_log_v1_sandboxes__sandbox_id__git_log_get', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_log_v1_sandboxes__sandbox_id__git_log_get'>>}
   */
  log(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/git/log', query: ['path', 'snapshot', 'limit', 'revision', 'paths', 'skip'], headers: ['session_id'] }, { ...this._names }, undefined, options)
  }

  /**
   * One commit, with what it changed against its first parent. Nothing of Git is run.
   *
   * @param {import('./terms.d.ts').Options<'git_show_v1_sandboxes__sandbox_id__git_show_get', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_show_v1_sandboxes__sandbox_id__git_show_get'>>}
   */
  show(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/git/show', query: ['path', 'snapshot', 'limit', 'revision', 'paths'], headers: ['session_id'] }, { ...this._names }, undefined, options)
  }

  /**
   * What differs between two of: a revision, what is staged, the working tree. Nothing of Git is run.
   *
   * @param {import('./terms.d.ts').Options<'git_diff_v1_sandboxes__sandbox_id__git_diff_get', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_diff_v1_sandboxes__sandbox_id__git_diff_get'>>}
   */
  diff(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/git/diff', query: ['path', 'snapshot', 'limit', 'before', 'after', 'staged', 'paths'], headers: ['session_id'] }, { ...this._names }, undefined, options)
  }

  /**
   * Branches, tags and remotes. Nothing of Git is run.
   *
   * @param {import('./terms.d.ts').Options<'git_refs_v1_sandboxes__sandbox_id__git_refs_get', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_refs_v1_sandboxes__sandbox_id__git_refs_get'>>}
   */
  refs(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/git/refs', query: ['path', 'snapshot', 'limit'], headers: ['session_id'] }, { ...this._names }, undefined, options)
  }

  /**
   * The repositories of the workspace. Nothing of Git is run.
   *
   * @param {import('./terms.d.ts').Options<'git_repositories_v1_sandboxes__sandbox_id__git_repositories_get', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_repositories_v1_sandboxes__sandbox_id__git_repositories_get'>>}
   */
  repositories(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/sandboxes/{sandbox_id}/git/repositories', query: ['path', 'snapshot', 'limit'], headers: ['session_id'] }, { ...this._names }, undefined, options)
  }

  /**
   * Begin a repository.
   *
   * @param {Body<'git_init_v1_sandboxes__sandbox_id__git_init_post'>} [body]
   * @param {import('./terms.d.ts').Options<'git_init_v1_sandboxes__sandbox_id__git_init_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_init_v1_sandboxes__sandbox_id__git_init_post'>>}
   */
  init(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/init', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Fetch a repository from elsewhere, as far as the network of the sandbox leads there.
   *
   * @param {Body<'git_clone_v1_sandboxes__sandbox_id__git_clone_post'>} body
   * @param {import('./terms.d.ts').Options<'git_clone_v1_sandboxes__sandbox_id__git_clone_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_clone_v1_sandboxes__sandbox_id__git_clone_post'>>}
   */
  clone(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/clone', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Record what is staged, after adding what is named. Its author is the agent.
   *
   * @param {Body<'git_commit_v1_sandboxes__sandbox_id__git_commit_post'>} body
   * @param {import('./terms.d.ts').Options<'git_commit_v1_sandboxes__sandbox_id__git_commit_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_commit_v1_sandboxes__sandbox_id__git_commit_post'>>}
   */
  commit(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/commit', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Make a branch, or delete one.
   *
   * @param {Body<'git_branch_v1_sandboxes__sandbox_id__git_branch_post'>} body
   * @param {import('./terms.d.ts').Options<'git_branch_v1_sandboxes__sandbox_id__git_branch_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_branch_v1_sandboxes__sandbox_id__git_branch_post'>>}
   */
  branch(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/branch', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Check out another branch, or a commit.
   *
   * @param {Body<'git_switch_v1_sandboxes__sandbox_id__git_switch_post'>} body
   * @param {import('./terms.d.ts').Options<'git_switch_v1_sandboxes__sandbox_id__git_switch_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_switch_v1_sandboxes__sandbox_id__git_switch_post'>>}
   */
  switch(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/switch', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Join another history to the branch that is checked out, or give that up.
   *
   * @param {Body<'git_merge_v1_sandboxes__sandbox_id__git_merge_post'>} [body]
   * @param {import('./terms.d.ts').Options<'git_merge_v1_sandboxes__sandbox_id__git_merge_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_merge_v1_sandboxes__sandbox_id__git_merge_post'>>}
   */
  merge(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/merge', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Have files be again as a commit, or what is staged, has them.
   *
   * @param {Body<'git_restore_v1_sandboxes__sandbox_id__git_restore_post'>} body
   * @param {import('./terms.d.ts').Options<'git_restore_v1_sandboxes__sandbox_id__git_restore_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_restore_v1_sandboxes__sandbox_id__git_restore_post'>>}
   */
  restore(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/restore', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Give a commit a name that stays, or take one away.
   *
   * @param {Body<'git_tag_v1_sandboxes__sandbox_id__git_tag_post'>} body
   * @param {import('./terms.d.ts').Options<'git_tag_v1_sandboxes__sandbox_id__git_tag_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_tag_v1_sandboxes__sandbox_id__git_tag_post'>>}
   */
  tag(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/tag', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Get what a remote has. Nothing that is checked out changes.
   *
   * @param {Body<'git_fetch_v1_sandboxes__sandbox_id__git_fetch_post'>} [body]
   * @param {import('./terms.d.ts').Options<'git_fetch_v1_sandboxes__sandbox_id__git_fetch_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_fetch_v1_sandboxes__sandbox_id__git_fetch_post'>>}
   */
  fetch(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/fetch', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * Send a branch to a remote.
   *
   * @param {Body<'git_push_v1_sandboxes__sandbox_id__git_push_post'>} [body]
   * @param {import('./terms.d.ts').Options<'git_push_v1_sandboxes__sandbox_id__git_push_post', 'session_id'>} [options]
   * @returns {Promise<Answer<'git_push_v1_sandboxes__sandbox_id__git_push_post'>>}
   */
  push(body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/git/push', headers: ['session_id'], body: 'application/json' }, { ...this._names }, body, options)
  }
}

export class Builds extends Operations {
  /**
   * Take in the files of a workspace as they are, run the phases on them one after the other, and answer at once.
   *
   * @param {string} sandbox_id
   * @param {Body<'start_build_v1_sandboxes__sandbox_id__builds_post'>} body
   * @param {import('./terms.d.ts').Options<'start_build_v1_sandboxes__sandbox_id__builds_post', 'idempotency_key'>} [options]
   * @returns {Promise<Answer<'start_build_v1_sandboxes__sandbox_id__builds_post'>>}
   */
  start(sandbox_id, body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/sandboxes/{sandbox_id}/builds', headers: ['idempotency_key'], body: 'application/json' }, { ...this._names, sandbox_id }, body, options)
  }

  /**
   * Builds that the caller may see, newest first, those of ended sandboxes too.
   *
   * @param {import('./terms.d.ts').Options<'list_builds_v1_builds_get'>} [options]
   * @returns {Promise<Answer<'list_builds_v1_builds_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/builds', query: ['sandbox_id', 'agent_id', 'after', 'limit'] }, { ...this._names }, undefined, options)
  }

  /**
   * How it and each of its phases stands; with `wait_s`, as soon as it is over, or after that time as it is then.
   *
   * @param {string} build_id
   * @param {import('./terms.d.ts').Options<'get_build_v1_builds__build_id__get'>} [options]
   * @returns {Promise<Answer<'get_build_v1_builds__build_id__get'>>}
   */
  get(build_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/builds/{build_id}', query: ['wait_s'] }, { ...this._names, build_id }, undefined, options)
  }

  /**
   * Start no further phase, and end the one that runs.
   *
   * @param {string} build_id
   * @param {import('./terms.d.ts').Options<'cancel_build_v1_builds__build_id__cancel_post'>} [options]
   * @returns {Promise<Answer<'cancel_build_v1_builds__build_id__cancel_post'>>}
   */
  cancel(build_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/builds/{build_id}/cancel' }, { ...this._names, build_id }, undefined, options)
  }

  /**
   * Make it again in a new sandbox, from what went into it and nothing else; answers when that has begun.
   *
   * @param {string} build_id
   * @param {Body<'rebuild_v1_builds__build_id__rebuild_post'>} [body]
   * @param {import('./terms.d.ts').Options<'rebuild_v1_builds__build_id__rebuild_post'>} [options]
   * @returns {Promise<Answer<'rebuild_v1_builds__build_id__rebuild_post'>>}
   */
  rebuild(build_id, body = {}, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/builds/{build_id}/rebuild', body: 'application/json' }, { ...this._names, build_id }, body, options)
  }

  /**
   * In what it differs from another one: commands, template, input, dependencies, output.
   *
   * @param {string} build_id
   * @param {string} other_id
   * @param {import('./terms.d.ts').Options<'compare_builds_v1_builds__build_id__compare__other_id__get'>} [options]
   * @returns {Promise<Answer<'compare_builds_v1_builds__build_id__compare__other_id__get'>>}
   */
  compare(build_id, other_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/builds/{build_id}/compare/{other_id}' }, { ...this._names, build_id, other_id }, undefined, options)
  }

  /**
   * Log of a build
   *
   * @param {string} build_id
   * @param {import('./terms.d.ts').Options<'read_build_log'>} [options]
   * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
   */
  log(build_id, options = {}) {
    return this._transport.bytes({ method: 'GET', path: '/v1/builds/{build_id}/log', query: ['phase', 'offset', 'length'] }, { ...this._names, build_id }, options)
  }
}

export class Webhooks extends Operations {
  /**
   * All web hooks, with how it goes there, without their secrets.
   *
   * @param {import('./terms.d.ts').Options<'list_webhooks_v1_webhooks_get'>} [options]
   * @returns {Promise<Answer<'list_webhooks_v1_webhooks_get'>>}
   */
  list(options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/webhooks' }, { ...this._names }, undefined, options)
  }

  /**
   * Announce events to an address from now on, signed with the secret of the answer, which is shown this once.
   *
   * @param {Body<'add_webhook_v1_webhooks_post'>} body
   * @param {import('./terms.d.ts').Options<'add_webhook_v1_webhooks_post'>} [options]
   * @returns {Promise<Answer<'add_webhook_v1_webhooks_post'>>}
   */
  add(body, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/webhooks', body: 'application/json' }, { ...this._names }, body, options)
  }

  /**
   * One web hook, with how it goes there.
   *
   * @param {string} webhook_id
   * @param {import('./terms.d.ts').Options<'get_webhook_v1_webhooks__webhook_id__get'>} [options]
   * @returns {Promise<Answer<'get_webhook_v1_webhooks__webhook_id__get'>>}
   */
  get(webhook_id, options = {}) {
    return this._transport.call({ method: 'GET', path: '/v1/webhooks/{webhook_id}' }, { ...this._names, webhook_id }, undefined, options)
  }

  /**
   * Announce nothing more there.
   *
   * @param {string} webhook_id
   * @param {import('./terms.d.ts').Options<'remove_webhook_v1_webhooks__webhook_id__delete'>} [options]
   * @returns {Promise<Answer<'remove_webhook_v1_webhooks__webhook_id__delete'>>}
   */
  remove(webhook_id, options = {}) {
    return this._transport.call({ method: 'DELETE', path: '/v1/webhooks/{webhook_id}' }, { ...this._names, webhook_id }, undefined, options)
  }

  /**
   * Try one that fails, or is dead, again at once. It goes on where it was.
   *
   * @param {string} webhook_id
   * @param {import('./terms.d.ts').Options<'resume_webhook_v1_webhooks__webhook_id__resume_post'>} [options]
   * @returns {Promise<Answer<'resume_webhook_v1_webhooks__webhook_id__resume_post'>>}
   */
  resume(webhook_id, options = {}) {
    return this._transport.call({ method: 'POST', path: '/v1/webhooks/{webhook_id}/resume' }, { ...this._names, webhook_id }, undefined, options)
  }
}
