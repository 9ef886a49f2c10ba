export class ColdframeOperations extends Operations {
    /**
     * Whether the server answers; needs no token and tells nothing else.
     *
     * @param {import('./terms.d.ts').Options<'health_v1_health_get'>} [options]
     * @returns {Promise<Answer<'health_v1_health_get'>>}
     */
    health(options?: import("./terms.d.ts").Options<"health_v1_health_get">): Promise<Answer<"health_v1_health_get">>;
    /**
     * Tools with their schemas
     *
     * @param {import('./terms.d.ts').Options<'list_tools'>} [options]
     * @returns {Promise<Answer<'list_tools'>>}
     */
    tools(options?: import("./terms.d.ts").Options<"list_tools">): Promise<Answer<"list_tools">>;
    /**
     * Every code that an error or the status of a command can have, with what to do.
     *
     * @param {import('./terms.d.ts').Options<'list_codes_v1_errors_get'>} [options]
     * @returns {Promise<Answer<'list_codes_v1_errors_get'>>}
     */
    errors(options?: import("./terms.d.ts").Options<"list_codes_v1_errors_get">): Promise<Answer<"list_codes_v1_errors_get">>;
    /**
     * Port, domains and certificate of the edge, by which SDKs of E2B and browsers reach sandboxes.
     *
     * @param {import('./terms.d.ts').Options<'get_edge_v1_edge_get'>} [options]
     * @returns {Promise<Answer<'get_edge_v1_edge_get'>>}
     */
    edge(options?: import("./terms.d.ts").Options<"get_edge_v1_edge_get">): Promise<Answer<"get_edge_v1_edge_get">>;
    /**
     * The boxes that stand ready for the next sandboxes.
     *
     * @param {import('./terms.d.ts').Options<'pool_v1_pool_get'>} [options]
     * @returns {Promise<Answer<'pool_v1_pool_get'>>}
     */
    pool(options?: import("./terms.d.ts").Options<"pool_v1_pool_get">): Promise<Answer<"pool_v1_pool_get">>;
    /**
     * Build a throw-away box and report what holds on this machine.
     *
     * @param {import('./terms.d.ts').Options<'doctor_v1_doctor_get'>} [options]
     * @returns {Promise<Answer<'doctor_v1_doctor_get'>>}
     */
    doctor(options?: import("./terms.d.ts").Options<"doctor_v1_doctor_get">): Promise<Answer<"doctor_v1_doctor_get">>;
    /**
     * What is on record of a run, and which outputs were kept.
     *
     * @param {string} once_id
     * @param {import('./terms.d.ts').Options<'get_once_v1_once__once_id__get'>} [options]
     * @returns {Promise<Answer<'get_once_v1_once__once_id__get'>>}
     */
    once(once_id: string, options?: import("./terms.d.ts").Options<"get_once_v1_once__once_id__get">): Promise<Answer<"get_once_v1_once__once_id__get">>;
    /**
     * Remove the outputs that were kept.
     *
     * @param {string} once_id
     * @param {import('./terms.d.ts').Options<'forget_once_v1_once__once_id__delete'>} [options]
     * @returns {Promise<Answer<'forget_once_v1_once__once_id__delete'>>}
     */
    forgetOnce(once_id: string, options?: import("./terms.d.ts").Options<"forget_once_v1_once__once_id__delete">): Promise<Answer<"forget_once_v1_once__once_id__delete">>;
    /**
     * An output that was kept
     *
     * @param {string} once_id
     * @param {string} path
     * @param {import('./terms.d.ts').Options<'get_once_output'>} [options]
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    onceOutput(once_id: string, path: string, options?: import("./terms.d.ts").Options<"get_once_output">): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
    /**
     * What one call really did.
     *
     * @param {string} receipt_id
     * @param {import('./terms.d.ts').Options<'get_receipt_v1_receipts__receipt_id__get'>} [options]
     * @returns {Promise<Answer<'get_receipt_v1_receipts__receipt_id__get'>>}
     */
    receipt(receipt_id: string, options?: import("./terms.d.ts").Options<"get_receipt_v1_receipts__receipt_id__get">): Promise<Answer<"get_receipt_v1_receipts__receipt_id__get">>;
    /**
     * Files that are others after the call of the other receipt than they were after that of the first, by digest.
     *
     * @param {string} receipt_id
     * @param {string} other_id
     * @param {import('./terms.d.ts').Options<'compare_receipts_v1_receipts__receipt_id__diff__other_id__get'>} [options]
     * @returns {Promise<Answer<'compare_receipts_v1_receipts__receipt_id__diff__other_id__get'>>}
     */
    compareReceipts(receipt_id: string, other_id: string, options?: import("./terms.d.ts").Options<"compare_receipts_v1_receipts__receipt_id__diff__other_id__get">): Promise<Answer<"compare_receipts_v1_receipts__receipt_id__diff__other_id__get">>;
    /**
     * One of these files line by line, where what it held is still kept.
     *
     * @param {string} receipt_id
     * @param {string} other_id
     * @param {import('./terms.d.ts').Options<'compare_file_of_receipts_v1_receipts__receipt_id__hunks__other_id__get'>} [options]
     * @returns {Promise<Answer<'compare_file_of_receipts_v1_receipts__receipt_id__hunks__other_id__get'>>}
     */
    compareReceiptsFile(receipt_id: string, other_id: string, options?: import("./terms.d.ts").Options<"compare_file_of_receipts_v1_receipts__receipt_id__hunks__other_id__get">): Promise<Answer<"compare_file_of_receipts_v1_receipts__receipt_id__hunks__other_id__get">>;
    /**
     * Carry a command out again in a fresh sandbox that begins from what it began from, and tell what came out otherwise.
     * Nothing is written to where it was done first.
     *
     * @param {string} receipt_id
     * @param {Body<'replay_receipt_v1_receipts__receipt_id__replay_post'>} [body]
     * @param {import('./terms.d.ts').Options<'replay_receipt_v1_receipts__receipt_id__replay_post'>} [options]
     * @returns {Promise<Answer<'replay_receipt_v1_receipts__receipt_id__replay_post'>>}
     */
    replay(receipt_id: string, body?: Body<"replay_receipt_v1_receipts__receipt_id__replay_post">, options?: import("./terms.d.ts").Options<"replay_receipt_v1_receipts__receipt_id__replay_post">): Promise<Answer<"replay_receipt_v1_receipts__receipt_id__replay_post">>;
}
export class Sandboxes extends Operations {
    /**
     * Create a sandbox and measure its walls; nothing is left behind if one is missing.
     *
     * @param {Body<'create_sandbox_v1_sandboxes_post'>} [body]
     * @param {import('./terms.d.ts').Options<'create_sandbox_v1_sandboxes_post', 'idempotency_key'>} [options]
     * @returns {Promise<Sandbox>}
     */
    create(body?: Body<"create_sandbox_v1_sandboxes_post">, options?: import("./terms.d.ts").Options<"create_sandbox_v1_sandboxes_post", "idempotency_key">): Promise<Sandbox>;
    /**
     * Sandboxes that the caller may see, newest first.
     *
     * @param {import('./terms.d.ts').Options<'list_sandboxes_v1_sandboxes_get'>} [options]
     * @returns {Promise<Sandbox[]>}
     */
    list(options?: import("./terms.d.ts").Options<"list_sandboxes_v1_sandboxes_get">): Promise<Sandbox[]>;
    /**
     * End all that fit: by state, agent, maker, age and idle time. One that cannot be ended holds up no other.
     *
     * @param {Body<'terminate_sandboxes_v1_sandboxes_terminate_post'>} [body]
     * @param {import('./terms.d.ts').Options<'terminate_sandboxes_v1_sandboxes_terminate_post'>} [options]
     * @returns {Promise<Answer<'terminate_sandboxes_v1_sandboxes_terminate_post'>>}
     */
    terminateAll(body?: Body<"terminate_sandboxes_v1_sandboxes_terminate_post">, options?: import("./terms.d.ts").Options<"terminate_sandboxes_v1_sandboxes_terminate_post">): Promise<Answer<"terminate_sandboxes_v1_sandboxes_terminate_post">>;
    /**
     * Get Sandbox
     *
     * @param {string} sandbox_id
     * @param {import('./terms.d.ts').Options<'get_sandbox_v1_sandboxes__sandbox_id__get'>} [options]
     * @returns {Promise<Sandbox>}
     */
    get(sandbox_id: string, options?: import("./terms.d.ts").Options<"get_sandbox_v1_sandboxes__sandbox_id__get">): Promise<Sandbox>;
    /**
     * The contract that a sandbox would have. Nothing is started; its digest is what creation takes as `contract_sha256`.
     *
     * @param {Body<'plan_contract_v1_contracts_plan_post'>} [body]
     * @param {import('./terms.d.ts').Options<'plan_contract_v1_contracts_plan_post'>} [options]
     * @returns {Promise<Answer<'plan_contract_v1_contracts_plan_post'>>}
     */
    plan(body?: Body<"plan_contract_v1_contracts_plan_post">, options?: import("./terms.d.ts").Options<"plan_contract_v1_contracts_plan_post">): Promise<Answer<"plan_contract_v1_contracts_plan_post">>;
}
export class SandboxOperations extends Operations {
    /**
     * End a sandbox and everything that runs in it. The workspace of its agent stays, a temporary one is gone, unless as
     * a snapshot. The answer says what was lost.
     *
     * @param {import('./terms.d.ts').Options<'terminate_sandbox_v1_sandboxes__sandbox_id__delete'>} [options]
     * @returns {Promise<Answer<'terminate_sandbox_v1_sandboxes__sandbox_id__delete'>>}
     */
    terminate(options?: import("./terms.d.ts").Options<"terminate_sandbox_v1_sandboxes__sandbox_id__delete">): Promise<Answer<"terminate_sandbox_v1_sandboxes__sandbox_id__delete">>;
    /**
     * Hold its processes still with their memory and connections, or end them and keep its files.
     *
     * @param {Body<'pause_sandbox_v1_sandboxes__sandbox_id__pause_post'>} [body]
     * @param {import('./terms.d.ts').Options<'pause_sandbox_v1_sandboxes__sandbox_id__pause_post'>} [options]
     * @returns {Promise<Answer<'pause_sandbox_v1_sandboxes__sandbox_id__pause_post'>>}
     */
    pause(body?: Body<"pause_sandbox_v1_sandboxes__sandbox_id__pause_post">, options?: import("./terms.d.ts").Options<"pause_sandbox_v1_sandboxes__sandbox_id__pause_post">): Promise<Answer<"pause_sandbox_v1_sandboxes__sandbox_id__pause_post">>;
    /**
     * Let a paused one go on where it was; start a stopped one.
     *
     * @param {import('./terms.d.ts').Options<'resume_sandbox_v1_sandboxes__sandbox_id__resume_post'>} [options]
     * @returns {Promise<Answer<'resume_sandbox_v1_sandboxes__sandbox_id__resume_post'>>}
     */
    resume(options?: import("./terms.d.ts").Options<"resume_sandbox_v1_sandboxes__sandbox_id__resume_post">): Promise<Answer<"resume_sandbox_v1_sandboxes__sandbox_id__resume_post">>;
    /**
     * End its processes, and keep its files, records and session for `start`. The answer says what was lost.
     *
     * @param {import('./terms.d.ts').Options<'stop_sandbox_v1_sandboxes__sandbox_id__stop_post'>} [options]
     * @returns {Promise<Answer<'stop_sandbox_v1_sandboxes__sandbox_id__stop_post'>>}
     */
    stop(options?: import("./terms.d.ts").Options<"stop_sandbox_v1_sandboxes__sandbox_id__stop_post">): Promise<Answer<"stop_sandbox_v1_sandboxes__sandbox_id__stop_post">>;
    /**
     * Build a stopped one anew on the same workspace.
     *
     * @param {import('./terms.d.ts').Options<'start_sandbox_v1_sandboxes__sandbox_id__start_post'>} [options]
     * @returns {Promise<Answer<'start_sandbox_v1_sandboxes__sandbox_id__start_post'>>}
     */
    startAgain(options?: import("./terms.d.ts").Options<"start_sandbox_v1_sandboxes__sandbox_id__start_post">): Promise<Answer<"start_sandbox_v1_sandboxes__sandbox_id__start_post">>;
    /**
     * Have no timer act on it for a while. Nothing else gives it more time.
     *
     * @param {Body<'extend_sandbox_v1_sandboxes__sandbox_id__extend_post'>} body
     * @param {import('./terms.d.ts').Options<'extend_sandbox_v1_sandboxes__sandbox_id__extend_post'>} [options]
     * @returns {Promise<Answer<'extend_sandbox_v1_sandboxes__sandbox_id__extend_post'>>}
     */
    extendLife(body: Body<"extend_sandbox_v1_sandboxes__sandbox_id__extend_post">, options?: import("./terms.d.ts").Options<"extend_sandbox_v1_sandboxes__sandbox_id__extend_post">): Promise<Answer<"extend_sandbox_v1_sandboxes__sandbox_id__extend_post">>;
    /**
     * The walls, measured now.
     *
     * @param {import('./terms.d.ts').Options<'measure_isolation_v1_sandboxes__sandbox_id__report_get'>} [options]
     * @returns {Promise<Answer<'measure_isolation_v1_sandboxes__sandbox_id__report_get'>>}
     */
    report(options?: import("./terms.d.ts").Options<"measure_isolation_v1_sandboxes__sandbox_id__report_get">): Promise<Answer<"measure_isolation_v1_sandboxes__sandbox_id__report_get">>;
    /**
     * What this caller may do here; what is not listed is denied.
     *
     * @param {import('./terms.d.ts').Options<'list_allowed_v1_sandboxes__sandbox_id__allowed_get'>} [options]
     * @returns {Promise<Answer<'list_allowed_v1_sandboxes__sandbox_id__allowed_get'>>}
     */
    allowed(options?: import("./terms.d.ts").Options<"list_allowed_v1_sandboxes__sandbox_id__allowed_get">): Promise<Answer<"list_allowed_v1_sandboxes__sandbox_id__allowed_get">>;
    /**
     * Attempts to reach out.
     *
     * @param {import('./terms.d.ts').Options<'list_contacts_v1_sandboxes__sandbox_id__contacts_get'>} [options]
     * @returns {Promise<Answer<'list_contacts_v1_sandboxes__sandbox_id__contacts_get'>>}
     */
    contacts(options?: import("./terms.d.ts").Options<"list_contacts_v1_sandboxes__sandbox_id__contacts_get">): Promise<Answer<"list_contacts_v1_sandboxes__sandbox_id__contacts_get">>;
    /**
     * What runs inside now.
     *
     * @param {import('./terms.d.ts').Options<'list_processes_v1_sandboxes__sandbox_id__processes_get'>} [options]
     * @returns {Promise<Answer<'list_processes_v1_sandboxes__sandbox_id__processes_get'>>}
     */
    processes(options?: import("./terms.d.ts").Options<"list_processes_v1_sandboxes__sandbox_id__processes_get">): Promise<Answer<"list_processes_v1_sandboxes__sandbox_id__processes_get">>;
    /**
     * Packages of pip, npm and apt: installed, cached, in the template, in a snapshot, and what has drifted since.
     *
     * @param {import('./terms.d.ts').Options<'view_packages_v1_sandboxes__sandbox_id__packages_get'>} [options]
     * @returns {Promise<Answer<'view_packages_v1_sandboxes__sandbox_id__packages_get'>>}
     */
    packages(options?: import("./terms.d.ts").Options<"view_packages_v1_sandboxes__sandbox_id__packages_get">): Promise<Answer<"view_packages_v1_sandboxes__sandbox_id__packages_get">>;
    /**
     * Languages and managers of packages found inside, whether the rules let this caller start them, and how to get the
     * others.
     *
     * @param {import('./terms.d.ts').Options<'list_runtimes_v1_sandboxes__sandbox_id__runtimes_get'>} [options]
     * @returns {Promise<Answer<'list_runtimes_v1_sandboxes__sandbox_id__runtimes_get'>>}
     */
    runtimes(options?: import("./terms.d.ts").Options<"list_runtimes_v1_sandboxes__sandbox_id__runtimes_get">): Promise<Answer<"list_runtimes_v1_sandboxes__sandbox_id__runtimes_get">>;
    /**
     * Shell sessions of the sandbox, each with the command that runs in it.
     *
     * @param {import('./terms.d.ts').Options<'list_shells_v1_sandboxes__sandbox_id__shells_get'>} [options]
     * @returns {Promise<Answer<'list_shells_v1_sandboxes__sandbox_id__shells_get'>>}
     */
    shells(options?: import("./terms.d.ts").Options<"list_shells_v1_sandboxes__sandbox_id__shells_get">): Promise<Answer<"list_shells_v1_sandboxes__sandbox_id__shells_get">>;
    /**
     * Forget a shell session: the next command of that name begins anew.
     *
     * @param {string} name
     * @param {import('./terms.d.ts').Options<'end_shell_v1_sandboxes__sandbox_id__shells__name__delete'>} [options]
     * @returns {Promise<Answer<'end_shell_v1_sandboxes__sandbox_id__shells__name__delete'>>}
     */
    endShell(name: string, options?: import("./terms.d.ts").Options<"end_shell_v1_sandboxes__sandbox_id__shells__name__delete">): Promise<Answer<"end_shell_v1_sandboxes__sandbox_id__shells__name__delete">>;
    /**
     * Processes that listen at a port, with their ports and the command that they belong to.
     *
     * @param {import('./terms.d.ts').Options<'list_ports_v1_sandboxes__sandbox_id__ports_get'>} [options]
     * @returns {Promise<Answer<'list_ports_v1_sandboxes__sandbox_id__ports_get'>>}
     */
    ports(options?: import("./terms.d.ts").Options<"list_ports_v1_sandboxes__sandbox_id__ports_get">): Promise<Answer<"list_ports_v1_sandboxes__sandbox_id__ports_get">>;
    /**
     * What commands of the sandbox have in place of secrets. Nothing in one without network, or that has ended.
     *
     * @param {import('./terms.d.ts').Options<'list_handles_v1_sandboxes__sandbox_id__credentials_get'>} [options]
     * @returns {Promise<Answer<'list_handles_v1_sandboxes__sandbox_id__credentials_get'>>}
     */
    credentials(options?: import("./terms.d.ts").Options<"list_handles_v1_sandboxes__sandbox_id__credentials_get">): Promise<Answer<"list_handles_v1_sandboxes__sandbox_id__credentials_get">>;
    /**
     * Let it go on in a larger profile, under the same id, with its files and its record. There is no way back.
     *
     * @param {Body<'promote_sandbox_v1_sandboxes__sandbox_id__promote_post'>} body
     * @param {import('./terms.d.ts').Options<'promote_sandbox_v1_sandboxes__sandbox_id__promote_post'>} [options]
     * @returns {Promise<Answer<'promote_sandbox_v1_sandboxes__sandbox_id__promote_post'>>}
     */
    promote(body: Body<"promote_sandbox_v1_sandboxes__sandbox_id__promote_post">, options?: import("./terms.d.ts").Options<"promote_sandbox_v1_sandboxes__sandbox_id__promote_post">): Promise<Answer<"promote_sandbox_v1_sandboxes__sandbox_id__promote_post">>;
    /**
     * What the agent can do in it, which state remains, and how reliably people can look at the result or take it back.
     *
     * @param {import('./terms.d.ts').Options<'describe_sandbox_v1_sandboxes__sandbox_id__description_get'>} [options]
     * @returns {Promise<Answer<'describe_sandbox_v1_sandboxes__sandbox_id__description_get'>>}
     */
    describe(options?: import("./terms.d.ts").Options<"describe_sandbox_v1_sandboxes__sandbox_id__description_get">): Promise<Answer<"describe_sandbox_v1_sandboxes__sandbox_id__description_get">>;
    /**
     * Files, Git, activity, builds, logs, previews and deployment of the workspace that a sandbox is or was on, each
     * entry linked to its receipt, with what can be done from there. Nothing is started for it.
     *
     * @param {import('./terms.d.ts').Options<'overview_workspace_v1_sandboxes__sandbox_id__overview_get'>} [options]
     * @returns {Promise<Answer<'overview_workspace_v1_sandboxes__sandbox_id__overview_get'>>}
     */
    overview(options?: import("./terms.d.ts").Options<"overview_workspace_v1_sandboxes__sandbox_id__overview_get">): Promise<Answer<"overview_workspace_v1_sandboxes__sandbox_id__overview_get">>;
    /**
     * In at most 8 KiB: files, recent changes, commands that run or have failed, open ports, notes, essentials of the
     * contract.
     *
     * @param {import('./terms.d.ts').Options<'summarize_workspace_v1_sandboxes__sandbox_id__summary_get'>} [options]
     * @returns {Promise<Answer<'summarize_workspace_v1_sandboxes__sandbox_id__summary_get'>>}
     */
    summary(options?: import("./terms.d.ts").Options<"summarize_workspace_v1_sandboxes__sandbox_id__summary_get">): Promise<Answer<"summarize_workspace_v1_sandboxes__sandbox_id__summary_get">>;
    /**
     * Inputs, what is executed, outputs, and what remains at the end.
     *
     * @param {import('./terms.d.ts').Options<'get_contract_v1_sandboxes__sandbox_id__contract_get'>} [options]
     * @returns {Promise<Answer<'get_contract_v1_sandboxes__sandbox_id__contract_get'>>}
     */
    contract(options?: import("./terms.d.ts").Options<"get_contract_v1_sandboxes__sandbox_id__contract_get">): Promise<Answer<"get_contract_v1_sandboxes__sandbox_id__contract_get">>;
    /**
     * What remains when, whose it is, and how much of it there is now.
     *
     * @param {import('./terms.d.ts').Options<'list_items_v1_sandboxes__sandbox_id__persistence_get'>} [options]
     * @returns {Promise<Answer<'list_items_v1_sandboxes__sandbox_id__persistence_get'>>}
     */
    persistence(options?: import("./terms.d.ts").Options<"list_items_v1_sandboxes__sandbox_id__persistence_get">): Promise<Answer<"list_items_v1_sandboxes__sandbox_id__persistence_get">>;
    /**
     * What went in: each version with its source, digest, label, and the time it held.
     *
     * @param {import('./terms.d.ts').Options<'list_inputs_v1_sandboxes__sandbox_id__inputs_get'>} [options]
     * @returns {Promise<Answer<'list_inputs_v1_sandboxes__sandbox_id__inputs_get'>>}
     */
    inputs(options?: import("./terms.d.ts").Options<"list_inputs_v1_sandboxes__sandbox_id__inputs_get">): Promise<Answer<"list_inputs_v1_sandboxes__sandbox_id__inputs_get">>;
    /**
     * What the work in a sandbox has left, also when it has ended: files of its workspace, and what commands have
     * printed.
     *
     * @param {import('./terms.d.ts').Options<'list_artifacts_v1_sandboxes__sandbox_id__artifacts_get'>} [options]
     * @returns {Promise<Answer<'list_artifacts_v1_sandboxes__sandbox_id__artifacts_get'>>}
     */
    artifacts(options?: import("./terms.d.ts").Options<"list_artifacts_v1_sandboxes__sandbox_id__artifacts_get">): Promise<Answer<"list_artifacts_v1_sandboxes__sandbox_id__artifacts_get">>;
    /**
     * Say of what kind something is, where the rules are wrong. It is recorded, and holds for the name in that workspace.
     *
     * @param {Body<'correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post'>} body
     * @param {import('./terms.d.ts').Options<'correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post'>} [options]
     * @returns {Promise<Answer<'correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post'>>}
     */
    correctArtifact(body: Body<"correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post">, options?: import("./terms.d.ts").Options<"correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post">): Promise<Answer<"correct_artifact_v1_sandboxes__sandbox_id__artifacts_kind_post">>;
    /**
     * What there is of the outputs that the sandbox was made for, and what was made beside them.
     *
     * @param {import('./terms.d.ts').Options<'find_outputs_v1_sandboxes__sandbox_id__outputs_get'>} [options]
     * @returns {Promise<Answer<'find_outputs_v1_sandboxes__sandbox_id__outputs_get'>>}
     */
    outputs(options?: import("./terms.d.ts").Options<"find_outputs_v1_sandboxes__sandbox_id__outputs_get">): Promise<Answer<"find_outputs_v1_sandboxes__sandbox_id__outputs_get">>;
    /**
     * What a place inside belongs to.
     *
     * @param {import('./terms.d.ts').Options<'find_item_v1_sandboxes__sandbox_id__where_get'>} [options]
     * @returns {Promise<Answer<'find_item_v1_sandboxes__sandbox_id__where_get'>>}
     */
    where(options?: import("./terms.d.ts").Options<"find_item_v1_sandboxes__sandbox_id__where_get">): Promise<Answer<"find_item_v1_sandboxes__sandbox_id__where_get">>;
    /**
     * How it stands with the result of a sandbox that is deleted when it was fetched.
     *
     * @param {import('./terms.d.ts').Options<'get_result_v1_sandboxes__sandbox_id__result_get'>} [options]
     * @returns {Promise<Answer<'get_result_v1_sandboxes__sandbox_id__result_get'>>}
     */
    result(options?: import("./terms.d.ts").Options<"get_result_v1_sandboxes__sandbox_id__result_get">): Promise<Answer<"get_result_v1_sandboxes__sandbox_id__result_get">>;
    /**
     * Take down what the result is: the declared outputs as they are now.
     *
     * @param {import('./terms.d.ts').Options<'offer_result_v1_sandboxes__sandbox_id__result_post'>} [options]
     * @returns {Promise<Answer<'offer_result_v1_sandboxes__sandbox_id__result_post'>>}
     */
    offerResult(options?: import("./terms.d.ts").Options<"offer_result_v1_sandboxes__sandbox_id__result_post">): Promise<Answer<"offer_result_v1_sandboxes__sandbox_id__result_post">>;
    /**
     * Delete all that is left of the sandbox, for the digest of what was fetched.
     *
     * @param {Body<'confirm_result_v1_sandboxes__sandbox_id__result_confirm_post'>} body
     * @param {import('./terms.d.ts').Options<'confirm_result_v1_sandboxes__sandbox_id__result_confirm_post'>} [options]
     * @returns {Promise<Answer<'confirm_result_v1_sandboxes__sandbox_id__result_confirm_post'>>}
     */
    confirmResult(body: Body<"confirm_result_v1_sandboxes__sandbox_id__result_confirm_post">, options?: import("./terms.d.ts").Options<"confirm_result_v1_sandboxes__sandbox_id__result_confirm_post">): Promise<Answer<"confirm_result_v1_sandboxes__sandbox_id__result_confirm_post">>;
    /**
     * Remove a file
     *
     * @param {string} path
     * @param {import('./terms.d.ts').Options<'remove_file', 'session_id'>} [options]
     * @returns {Promise<Answer<'remove_file'>>}
     */
    removeFile(path: string, options?: import("./terms.d.ts").Options<"remove_file", "session_id">): Promise<Answer<"remove_file">>;
    /**
     * The result of a cell
     *
     * @param {string} cell_id
     * @param {import('./terms.d.ts').Options<'get_cell'>} [options]
     * @returns {Promise<Answer<'get_cell'>>}
     */
    cell(cell_id: string, options?: import("./terms.d.ts").Options<"get_cell">): Promise<Answer<"get_cell">>;
    /**
     * Stop a cell that runs. Where it does not let itself be stopped, its kernel is replaced, and its result says so.
     *
     * @param {string} cell_id
     * @param {import('./terms.d.ts').Options<'interrupt_cell_v1_sandboxes__sandbox_id__cells__cell_id__interrupt_post'>} [options]
     * @returns {Promise<Answer<'interrupt_cell_v1_sandboxes__sandbox_id__cells__cell_id__interrupt_post'>>}
     */
    interruptCell(cell_id: string, options?: import("./terms.d.ts").Options<"interrupt_cell_v1_sandboxes__sandbox_id__cells__cell_id__interrupt_post">): Promise<Answer<"interrupt_cell_v1_sandboxes__sandbox_id__cells__cell_id__interrupt_post">>;
    /**
     * Attach a file
     *
     * @param {Content} body
     * @param {import('./terms.d.ts').Options<'attach_file'>} [options]
     * @returns {Promise<Answer<'attach_file'>>}
     */
    attach(body: Content, options?: import("./terms.d.ts").Options<"attach_file">): Promise<Answer<"attach_file">>;
    /**
     * Contexts of the sandbox. Those of Python and JavaScript are there without being made.
     *
     * @param {import('./terms.d.ts').Options<'list_contexts_v1_sandboxes__sandbox_id__contexts_get'>} [options]
     * @returns {Promise<Answer<'list_contexts_v1_sandboxes__sandbox_id__contexts_get'>>}
     */
    contexts(options?: import("./terms.d.ts").Options<"list_contexts_v1_sandboxes__sandbox_id__contexts_get">): Promise<Answer<"list_contexts_v1_sandboxes__sandbox_id__contexts_get">>;
    /**
     * Make a context of its own variables, and begin to start its kernel.
     *
     * @param {Body<'open_context_v1_sandboxes__sandbox_id__contexts_post'>} [body]
     * @param {import('./terms.d.ts').Options<'open_context_v1_sandboxes__sandbox_id__contexts_post'>} [options]
     * @returns {Promise<Answer<'open_context_v1_sandboxes__sandbox_id__contexts_post'>>}
     */
    openContext(body?: Body<"open_context_v1_sandboxes__sandbox_id__contexts_post">, options?: import("./terms.d.ts").Options<"open_context_v1_sandboxes__sandbox_id__contexts_post">): Promise<Answer<"open_context_v1_sandboxes__sandbox_id__contexts_post">>;
    /**
     * Begin anew: all that cells have defined is gone, and a cell that runs ends.
     *
     * @param {string} context_id
     * @param {import('./terms.d.ts').Options<'restart_context_v1_sandboxes__sandbox_id__contexts__context_id__restart_post'>} [options]
     * @returns {Promise<Answer<'restart_context_v1_sandboxes__sandbox_id__contexts__context_id__restart_post'>>}
     */
    restartContext(context_id: string, options?: import("./terms.d.ts").Options<"restart_context_v1_sandboxes__sandbox_id__contexts__context_id__restart_post">): Promise<Answer<"restart_context_v1_sandboxes__sandbox_id__contexts__context_id__restart_post">>;
    /**
     * End its kernel and forget it. One that is there without being made is there again, as new.
     *
     * @param {string} context_id
     * @param {import('./terms.d.ts').Options<'close_context_v1_sandboxes__sandbox_id__contexts__context_id__delete'>} [options]
     * @returns {Promise<Answer<'close_context_v1_sandboxes__sandbox_id__contexts__context_id__delete'>>}
     */
    closeContext(context_id: string, options?: import("./terms.d.ts").Options<"close_context_v1_sandboxes__sandbox_id__contexts__context_id__delete">): Promise<Answer<"close_context_v1_sandboxes__sandbox_id__contexts__context_id__delete">>;
    /**
     * Commands of a sandbox
     *
     * @param {import('./terms.d.ts').Options<'list_commands'>} [options]
     * @returns {Promise<Answer<'list_commands'>>}
     */
    commands(options?: import("./terms.d.ts").Options<"list_commands">): Promise<Answer<"list_commands">>;
    /**
     * One command
     *
     * @param {string} command_id
     * @param {import('./terms.d.ts').Options<'get_command'>} [options]
     * @returns {Promise<Answer<'get_command'>>}
     */
    command(command_id: string, options?: import("./terms.d.ts").Options<"get_command">): Promise<Answer<"get_command">>;
    /**
     * Signal a command
     *
     * @param {string} command_id
     * @param {Body<'signal_command'>} [body]
     * @param {import('./terms.d.ts').Options<'signal_command'>} [options]
     * @returns {Promise<Answer<'signal_command'>>}
     */
    signal(command_id: string, body?: Body<"signal_command">, options?: import("./terms.d.ts").Options<"signal_command">): Promise<Answer<"signal_command">>;
    /**
     * Raise or lower limits of a running command, each counted from its start; one that is over already acts at once.
     *
     * @param {string} command_id
     * @param {Body<'change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post'>} [body]
     * @param {import('./terms.d.ts').Options<'change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post'>} [options]
     * @returns {Promise<Answer<'change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post'>>}
     */
    extendCommand(command_id: string, body?: Body<"change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post">, options?: import("./terms.d.ts").Options<"change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post">): Promise<Answer<"change_limits_v1_sandboxes__sandbox_id__commands__command_id__limits_post">>;
    /**
     * Resize a terminal
     *
     * @param {string} command_id
     * @param {Body<'resize_terminal'>} body
     * @param {import('./terms.d.ts').Options<'resize_terminal'>} [options]
     * @returns {Promise<Answer<'resize_terminal'>>}
     */
    resize(command_id: string, body: Body<"resize_terminal">, options?: import("./terms.d.ts").Options<"resize_terminal">): Promise<Answer<"resize_terminal">>;
    /**
     * Take one of the files of a sandbox that runs, is paused or stopped. Its processes stand still meanwhile and go on.
     *
     * @param {Body<'take_snapshot_v1_sandboxes__sandbox_id__snapshots_post'>} [body]
     * @param {import('./terms.d.ts').Options<'take_snapshot_v1_sandboxes__sandbox_id__snapshots_post', 'idempotency_key'>} [options]
     * @returns {Promise<Answer<'take_snapshot_v1_sandboxes__sandbox_id__snapshots_post'>>}
     */
    takeSnapshot(body?: Body<"take_snapshot_v1_sandboxes__sandbox_id__snapshots_post">, options?: import("./terms.d.ts").Options<"take_snapshot_v1_sandboxes__sandbox_id__snapshots_post", "idempotency_key">): Promise<Answer<"take_snapshot_v1_sandboxes__sandbox_id__snapshots_post">>;
    /**
     * What one taken now would have and leave out, path by path. Nothing is done.
     *
     * @param {import('./terms.d.ts').Options<'plan_snapshot_v1_sandboxes__sandbox_id__snapshots_plan_get'>} [options]
     * @returns {Promise<Answer<'plan_snapshot_v1_sandboxes__sandbox_id__snapshots_plan_get'>>}
     */
    planSnapshot(options?: import("./terms.d.ts").Options<"plan_snapshot_v1_sandboxes__sandbox_id__snapshots_plan_get">): Promise<Answer<"plan_snapshot_v1_sandboxes__sandbox_id__snapshots_plan_get">>;
    /**
     * Take its files back to a snapshot, or to nothing. One that runs is stopped for it and started again, with the same
     * id, session and network. What was before is kept for a day unless it is discarded.
     *
     * @param {Body<'reset_sandbox_v1_sandboxes__sandbox_id__reset_post'>} body
     * @param {import('./terms.d.ts').Options<'reset_sandbox_v1_sandboxes__sandbox_id__reset_post', 'idempotency_key'>} [options]
     * @returns {Promise<Answer<'reset_sandbox_v1_sandboxes__sandbox_id__reset_post'>>}
     */
    reset(body: Body<"reset_sandbox_v1_sandboxes__sandbox_id__reset_post">, options?: import("./terms.d.ts").Options<"reset_sandbox_v1_sandboxes__sandbox_id__reset_post", "idempotency_key">): Promise<Answer<"reset_sandbox_v1_sandboxes__sandbox_id__reset_post">>;
    /**
     * Make another sandbox, as the body says, that begins with the files of this one as they are now. Nothing else goes
     * along: no session, credential, network or limit. The agent has to be new.
     *
     * @param {Body<'fork_sandbox_v1_sandboxes__sandbox_id__fork_post'>} [body]
     * @param {import('./terms.d.ts').Options<'fork_sandbox_v1_sandboxes__sandbox_id__fork_post', 'idempotency_key'>} [options]
     * @returns {Promise<Sandbox>}
     */
    fork(body?: Body<"fork_sandbox_v1_sandboxes__sandbox_id__fork_post">, options?: import("./terms.d.ts").Options<"fork_sandbox_v1_sandboxes__sandbox_id__fork_post", "idempotency_key">): Promise<Sandbox>;
    /**
     * What a sandbox reached and tried to reach, in the order in which it came on record; also of one that has ended.
     * `host` is a name, an address, or `*.NAME` for all names below it. What goes over the same connection is one
     * contact. With `lookups` also names that were looked up and answered are listed; denied look-ups always are.
     *
     * @param {import('./terms.d.ts').Options<'list_network_v1_sandboxes__sandbox_id__network_get'>} [options]
     * @returns {Promise<Answer<'list_network_v1_sandboxes__sandbox_id__network_get'>>}
     */
    networkLog(options?: import("./terms.d.ts").Options<"list_network_v1_sandboxes__sandbox_id__network_get">): Promise<Answer<"list_network_v1_sandboxes__sandbox_id__network_get">>;
    /**
     * Follow the network of a sandbox
     *
     * @param {import('./terms.d.ts').Options<'follow_network'>} [options]
     * @returns {AsyncGenerator<Event<'follow_network'>, void, undefined>}
     */
    followNetwork(options?: import("./terms.d.ts").Options<"follow_network">): AsyncGenerator<Event<"follow_network">, void, undefined>;
    /**
     * Run steps one after the other; answers at once. Each step is a command of its own, through the gate.
     *
     * @param {Body<'start_pipeline_v1_sandboxes__sandbox_id__pipelines_post'>} body
     * @param {import('./terms.d.ts').Options<'start_pipeline_v1_sandboxes__sandbox_id__pipelines_post', 'idempotency_key'>} [options]
     * @returns {Promise<Answer<'start_pipeline_v1_sandboxes__sandbox_id__pipelines_post'>>}
     */
    startPipeline(body: Body<"start_pipeline_v1_sandboxes__sandbox_id__pipelines_post">, options?: import("./terms.d.ts").Options<"start_pipeline_v1_sandboxes__sandbox_id__pipelines_post", "idempotency_key">): Promise<Answer<"start_pipeline_v1_sandboxes__sandbox_id__pipelines_post">>;
    /**
     * The newest hundred pipelines of the sandbox, oldest first.
     *
     * @param {import('./terms.d.ts').Options<'list_pipelines_v1_sandboxes__sandbox_id__pipelines_get'>} [options]
     * @returns {Promise<Answer<'list_pipelines_v1_sandboxes__sandbox_id__pipelines_get'>>}
     */
    pipelines(options?: import("./terms.d.ts").Options<"list_pipelines_v1_sandboxes__sandbox_id__pipelines_get">): Promise<Answer<"list_pipelines_v1_sandboxes__sandbox_id__pipelines_get">>;
}
export class Watch extends Operations {
    /**
     * What a watch noted
     *
     * @param {import('./terms.d.ts').Options<'read_watch'>} [options]
     * @returns {Promise<Answer<'read_watch'>>}
     */
    read(options?: import("./terms.d.ts").Options<"read_watch">): Promise<Answer<"read_watch">>;
    /**
     * End a watch
     *
     * @param {import('./terms.d.ts').Options<'end_watch'>} [options]
     * @returns {Promise<Answer<'end_watch'>>}
     */
    end(options?: import("./terms.d.ts").Options<"end_watch">): Promise<Answer<"end_watch">>;
    /**
     * Follow a watch
     *
     * @param {import('./terms.d.ts').Options<'follow_watch'>} [options]
     * @returns {AsyncGenerator<Event<'follow_watch'>, void, undefined>}
     */
    events(options?: import("./terms.d.ts").Options<"follow_watch">): AsyncGenerator<Event<"follow_watch">, void, undefined>;
}
export class Pipeline extends Operations {
    /**
     * How it and each of its steps stands; with `wait_s`, as soon as it is over, or after that time as it is then.
     *
     * @param {import('./terms.d.ts').Options<'get_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__get'>} [options]
     * @returns {Promise<Answer<'get_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__get'>>}
     */
    info(options?: import("./terms.d.ts").Options<"get_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__get">): Promise<Answer<"get_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__get">>;
    /**
     * Run again what did not succeed, or the steps that are named. What succeeded is left as it is.
     *
     * @param {Body<'rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post'>} [body]
     * @param {import('./terms.d.ts').Options<'rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post'>} [options]
     * @returns {Promise<Answer<'rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post'>>}
     */
    rerun(body?: Body<"rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post">, options?: import("./terms.d.ts").Options<"rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post">): Promise<Answer<"rerun_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__rerun_post">>;
    /**
     * Start no further step, and end the one that runs.
     *
     * @param {import('./terms.d.ts').Options<'cancel_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__cancel_post'>} [options]
     * @returns {Promise<Answer<'cancel_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__cancel_post'>>}
     */
    cancel(options?: import("./terms.d.ts").Options<"cancel_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__cancel_post">): Promise<Answer<"cancel_pipeline_v1_sandboxes__sandbox_id__pipelines__pipeline_id__cancel_post">>;
}
export class Snapshots extends Operations {
    /**
     * Snapshots that the caller may see, newest first.
     *
     * @param {import('./terms.d.ts').Options<'list_snapshots_v1_snapshots_get'>} [options]
     * @returns {Promise<Answer<'list_snapshots_v1_snapshots_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_snapshots_v1_snapshots_get">): Promise<Answer<"list_snapshots_v1_snapshots_get">>;
    /**
     * Import a snapshot
     *
     * @param {Content} body
     * @param {import('./terms.d.ts').Options<'import_snapshot', 'idempotency_key'>} [options]
     * @returns {Promise<Answer<'import_snapshot'>>}
     */
    importArchive(body: Content, options?: import("./terms.d.ts").Options<"import_snapshot", "idempotency_key">): Promise<Answer<"import_snapshot">>;
    /**
     * Get Snapshot
     *
     * @param {string} snapshot_id
     * @param {import('./terms.d.ts').Options<'get_snapshot_v1_snapshots__snapshot_id__get'>} [options]
     * @returns {Promise<Answer<'get_snapshot_v1_snapshots__snapshot_id__get'>>}
     */
    get(snapshot_id: string, options?: import("./terms.d.ts").Options<"get_snapshot_v1_snapshots__snapshot_id__get">): Promise<Answer<"get_snapshot_v1_snapshots__snapshot_id__get">>;
    /**
     * Forget one. Sandboxes that were forked from it, or went back to it, go on.
     *
     * @param {string} snapshot_id
     * @param {import('./terms.d.ts').Options<'remove_snapshot_v1_snapshots__snapshot_id__delete'>} [options]
     * @returns {Promise<Answer<'remove_snapshot_v1_snapshots__snapshot_id__delete'>>}
     */
    remove(snapshot_id: string, options?: import("./terms.d.ts").Options<"remove_snapshot_v1_snapshots__snapshot_id__delete">): Promise<Answer<"remove_snapshot_v1_snapshots__snapshot_id__delete">>;
    /**
     * Rename Snapshot
     *
     * @param {string} snapshot_id
     * @param {Body<'rename_snapshot_v1_snapshots__snapshot_id__name_put'>} body
     * @param {import('./terms.d.ts').Options<'rename_snapshot_v1_snapshots__snapshot_id__name_put'>} [options]
     * @returns {Promise<Answer<'rename_snapshot_v1_snapshots__snapshot_id__name_put'>>}
     */
    rename(snapshot_id: string, body: Body<"rename_snapshot_v1_snapshots__snapshot_id__name_put">, options?: import("./terms.d.ts").Options<"rename_snapshot_v1_snapshots__snapshot_id__name_put">): Promise<Answer<"rename_snapshot_v1_snapshots__snapshot_id__name_put">>;
    /**
     * Export a snapshot
     *
     * @param {string} snapshot_id
     * @param {import('./terms.d.ts').Options<'export_snapshot'>} [options]
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    export(snapshot_id: string, options?: import("./terms.d.ts").Options<"export_snapshot">): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
    /**
     * What differs between two points, by path: ids of snapshots, or of sandboxes for what they have now.
     *
     * @param {string} before
     * @param {string} after
     * @param {import('./terms.d.ts').Options<'compare_points_v1_compare__before___after__get'>} [options]
     * @returns {Promise<Answer<'compare_points_v1_compare__before___after__get'>>}
     */
    compare(before: string, after: string, options?: import("./terms.d.ts").Options<"compare_points_v1_compare__before___after__get">): Promise<Answer<"compare_points_v1_compare__before___after__get">>;
    /**
     * Compare a file
     *
     * @param {string} before
     * @param {string} after
     * @param {string} path
     * @param {import('./terms.d.ts').Options<'compare_file'>} [options]
     * @returns {Promise<Answer<'compare_file'>>}
     */
    compareFile(before: string, after: string, path: string, options?: import("./terms.d.ts").Options<"compare_file">): Promise<Answer<"compare_file">>;
}
export class Volumes extends Operations {
    /**
     * Make a volume, empty.
     *
     * @param {Body<'create_volume_v1_volumes_post'>} body
     * @param {import('./terms.d.ts').Options<'create_volume_v1_volumes_post'>} [options]
     * @returns {Promise<Answer<'create_volume_v1_volumes_post'>>}
     */
    create(body: Body<"create_volume_v1_volumes_post">, options?: import("./terms.d.ts").Options<"create_volume_v1_volumes_post">): Promise<Answer<"create_volume_v1_volumes_post">>;
    /**
     * Volumes that the caller may see, by name, with who has them.
     *
     * @param {import('./terms.d.ts').Options<'list_volumes_v1_volumes_get'>} [options]
     * @returns {Promise<Answer<'list_volumes_v1_volumes_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_volumes_v1_volumes_get">): Promise<Answer<"list_volumes_v1_volumes_get">>;
    /**
     * One of them, with how full it is.
     *
     * @param {string} name
     * @param {import('./terms.d.ts').Options<'get_volume_v1_volumes__name__get'>} [options]
     * @returns {Promise<Answer<'get_volume_v1_volumes__name__get'>>}
     */
    get(name: string, options?: import("./terms.d.ts").Options<"get_volume_v1_volumes__name__get">): Promise<Answer<"get_volume_v1_volumes__name__get">>;
    /**
     * Remove it with all its files, for good; only while no sandbox has it, or is to have it when it starts again.
     *
     * @param {string} name
     * @param {import('./terms.d.ts').Options<'remove_volume_v1_volumes__name__delete'>} [options]
     * @returns {Promise<Answer<'remove_volume_v1_volumes__name__delete'>>}
     */
    remove(name: string, options?: import("./terms.d.ts").Options<"remove_volume_v1_volumes__name__delete">): Promise<Answer<"remove_volume_v1_volumes__name__delete">>;
    /**
     * Let sandboxes of an agent have it, whoever makes them.
     *
     * @param {string} name
     * @param {Body<'grant_volume_v1_volumes__name__grants_post'>} body
     * @param {import('./terms.d.ts').Options<'grant_volume_v1_volumes__name__grants_post'>} [options]
     * @returns {Promise<Answer<'grant_volume_v1_volumes__name__grants_post'>>}
     */
    grant(name: string, body: Body<"grant_volume_v1_volumes__name__grants_post">, options?: import("./terms.d.ts").Options<"grant_volume_v1_volumes__name__grants_post">): Promise<Answer<"grant_volume_v1_volumes__name__grants_post">>;
    /**
     * Take a grant back. Sandboxes that have the volume keep it until they stop.
     *
     * @param {string} name
     * @param {string} agent_id
     * @param {import('./terms.d.ts').Options<'revoke_volume_v1_volumes__name__grants__agent_id__delete'>} [options]
     * @returns {Promise<Answer<'revoke_volume_v1_volumes__name__grants__agent_id__delete'>>}
     */
    revoke(name: string, agent_id: string, options?: import("./terms.d.ts").Options<"revoke_volume_v1_volumes__name__grants__agent_id__delete">): Promise<Answer<"revoke_volume_v1_volumes__name__grants__agent_id__delete">>;
    /**
     * What is in it, whether a sandbox has it or not. Nothing is started.
     *
     * @param {string} name
     * @param {import('./terms.d.ts').Options<'list_volume_files_v1_volumes__name__files_get'>} [options]
     * @returns {Promise<Answer<'list_volume_files_v1_volumes__name__files_get'>>}
     */
    listFiles(name: string, options?: import("./terms.d.ts").Options<"list_volume_files_v1_volumes__name__files_get">): Promise<Answer<"list_volume_files_v1_volumes__name__files_get">>;
    /**
     * Download a file of a volume
     *
     * @param {string} name
     * @param {string} path
     * @param {import('./terms.d.ts').Options<'download_volume_file'>} [options]
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    download(name: string, path: string, options?: import("./terms.d.ts").Options<"download_volume_file">): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
    /**
     * Upload a file to a volume
     *
     * @param {string} name
     * @param {string} path
     * @param {Content} body
     * @param {import('./terms.d.ts').Options<'upload_volume_file'>} [options]
     * @returns {Promise<Answer<'upload_volume_file'>>}
     */
    upload(name: string, path: string, body: Content, options?: import("./terms.d.ts").Options<"upload_volume_file">): Promise<Answer<"upload_volume_file">>;
    /**
     * Remove a file of a volume
     *
     * @param {string} name
     * @param {string} path
     * @param {import('./terms.d.ts').Options<'remove_volume_file'>} [options]
     * @returns {Promise<Answer<'remove_volume_file'>>}
     */
    removeFile(name: string, path: string, options?: import("./terms.d.ts").Options<"remove_volume_file">): Promise<Answer<"remove_volume_file">>;
}
export class Templates extends Operations {
    /**
     * Which of these bytes have to be uploaded before a build.
     *
     * @param {Body<'find_missing_inputs_v1_template_inputs_missing_post'>} body
     * @param {import('./terms.d.ts').Options<'find_missing_inputs_v1_template_inputs_missing_post'>} [options]
     * @returns {Promise<Answer<'find_missing_inputs_v1_template_inputs_missing_post'>>}
     */
    missingInputs(body: Body<"find_missing_inputs_v1_template_inputs_missing_post">, options?: import("./terms.d.ts").Options<"find_missing_inputs_v1_template_inputs_missing_post">): Promise<Answer<"find_missing_inputs_v1_template_inputs_missing_post">>;
    /**
     * Upload an input of a build
     *
     * @param {string} sha256
     * @param {Content} body
     * @param {import('./terms.d.ts').Options<'upload_input'>} [options]
     * @returns {Promise<Answer<'upload_input'>>}
     */
    uploadInput(sha256: string, body: Content, options?: import("./terms.d.ts").Options<"upload_input">): Promise<Answer<"upload_input">>;
    /**
     * Begin to build a template; answers at once. Its files have to be uploaded before.
     *
     * @param {Body<'build_template_v1_template_builds_post'>} body
     * @param {import('./terms.d.ts').Options<'build_template_v1_template_builds_post', 'idempotency_key'>} [options]
     * @returns {Promise<Answer<'build_template_v1_template_builds_post'>>}
     */
    build(body: Body<"build_template_v1_template_builds_post">, options?: import("./terms.d.ts").Options<"build_template_v1_template_builds_post", "idempotency_key">): Promise<Answer<"build_template_v1_template_builds_post">>;
    /**
     * The newest hundred builds, newest first.
     *
     * @param {import('./terms.d.ts').Options<'list_builds_v1_template_builds_get'>} [options]
     * @returns {Promise<Answer<'list_builds_v1_template_builds_get'>>}
     */
    builds(options?: import("./terms.d.ts").Options<"list_builds_v1_template_builds_get">): Promise<Answer<"list_builds_v1_template_builds_get">>;
    /**
     * All templates, or those of a name, newest first.
     *
     * @param {import('./terms.d.ts').Options<'list_templates_v1_templates_get'>} [options]
     * @returns {Promise<Answer<'list_templates_v1_templates_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_templates_v1_templates_get">): Promise<Answer<"list_templates_v1_templates_get">>;
    /**
     * One template with its packages, and the recipe that builds just that again.
     *
     * @param {string} template
     * @param {import('./terms.d.ts').Options<'get_template_v1_templates__template__get'>} [options]
     * @returns {Promise<Answer<'get_template_v1_templates__template__get'>>}
     */
    get(template: string, options?: import("./terms.d.ts").Options<"get_template_v1_templates__template__get">): Promise<Answer<"get_template_v1_templates__template__get">>;
    /**
     * Forget one that nothing stands on. Its version stays taken.
     *
     * @param {string} template
     * @param {import('./terms.d.ts').Options<'remove_template_v1_templates__template__delete'>} [options]
     * @returns {Promise<Answer<'remove_template_v1_templates__template__delete'>>}
     */
    remove(template: string, options?: import("./terms.d.ts").Options<"remove_template_v1_templates__template__delete">): Promise<Answer<"remove_template_v1_templates__template__delete">>;
    /**
     * Names of versions that move, of one template.
     *
     * @param {string} template
     * @param {import('./terms.d.ts').Options<'list_template_tags_v1_templates__template__tags_get'>} [options]
     * @returns {Promise<Answer<'list_template_tags_v1_templates__template__tags_get'>>}
     */
    tags(template: string, options?: import("./terms.d.ts").Options<"list_template_tags_v1_templates__template__tags_get">): Promise<Answer<"list_template_tags_v1_templates__template__tags_get">>;
    /**
     * Have tags stand for this version from now on, in place of those that they stood for. Returns all tags of the name.
     *
     * @param {string} template
     * @param {Body<'tag_template_v1_templates__template__tags_post'>} body
     * @param {import('./terms.d.ts').Options<'tag_template_v1_templates__template__tags_post'>} [options]
     * @returns {Promise<Answer<'tag_template_v1_templates__template__tags_post'>>}
     */
    tag(template: string, body: Body<"tag_template_v1_templates__template__tags_post">, options?: import("./terms.d.ts").Options<"tag_template_v1_templates__template__tags_post">): Promise<Answer<"tag_template_v1_templates__template__tags_post">>;
    /**
     * Take tags away; those that are not there are gone already. Returns those that are left.
     *
     * @param {string} template
     * @param {Body<'untag_template_v1_templates__template__untag_post'>} body
     * @param {import('./terms.d.ts').Options<'untag_template_v1_templates__template__untag_post'>} [options]
     * @returns {Promise<Answer<'untag_template_v1_templates__template__untag_post'>>}
     */
    untag(template: string, body: Body<"untag_template_v1_templates__template__untag_post">, options?: import("./terms.d.ts").Options<"untag_template_v1_templates__template__untag_post">): Promise<Answer<"untag_template_v1_templates__template__untag_post">>;
    /**
     * Read all of it, and refuse if it is not what was built.
     *
     * @param {string} template
     * @param {import('./terms.d.ts').Options<'verify_template_v1_templates__template__verify_post'>} [options]
     * @returns {Promise<Answer<'verify_template_v1_templates__template__verify_post'>>}
     */
    verify(template: string, options?: import("./terms.d.ts").Options<"verify_template_v1_templates__template__verify_post">): Promise<Answer<"verify_template_v1_templates__template__verify_post">>;
    /**
     * Run a check in a fresh sandbox of it, and mark it as known good if that passes.
     *
     * @param {string} template
     * @param {Body<'mark_template_v1_templates__template__mark_post'>} body
     * @param {import('./terms.d.ts').Options<'mark_template_v1_templates__template__mark_post'>} [options]
     * @returns {Promise<Answer<'mark_template_v1_templates__template__mark_post'>>}
     */
    mark(template: string, body: Body<"mark_template_v1_templates__template__mark_post">, options?: import("./terms.d.ts").Options<"mark_template_v1_templates__template__mark_post">): Promise<Answer<"mark_template_v1_templates__template__mark_post">>;
    /**
     * Let nothing new start from it. Sandboxes that run on it go on, and are told.
     *
     * @param {string} template
     * @param {Body<'withdraw_template_v1_templates__template__withdraw_post'>} body
     * @param {import('./terms.d.ts').Options<'withdraw_template_v1_templates__template__withdraw_post'>} [options]
     * @returns {Promise<Answer<'withdraw_template_v1_templates__template__withdraw_post'>>}
     */
    withdraw(template: string, body: Body<"withdraw_template_v1_templates__template__withdraw_post">, options?: import("./terms.d.ts").Options<"withdraw_template_v1_templates__template__withdraw_post">): Promise<Answer<"withdraw_template_v1_templates__template__withdraw_post">>;
}
export class TemplateBuild extends Operations {
    /**
     * How a build stands; with `wait_s`, as soon as it is over, or after that time as it is then.
     *
     * @param {import('./terms.d.ts').Options<'get_build_v1_template_builds__build_id__get'>} [options]
     * @returns {Promise<Answer<'get_build_v1_template_builds__build_id__get'>>}
     */
    info(options?: import("./terms.d.ts").Options<"get_build_v1_template_builds__build_id__get">): Promise<Answer<"get_build_v1_template_builds__build_id__get">>;
    /**
     * What a build has said after line `after_seq`; with `wait_s`, as soon as there is something, or it is over.
     *
     * @param {import('./terms.d.ts').Options<'read_build_log_v1_template_builds__build_id__log_get'>} [options]
     * @returns {Promise<Answer<'read_build_log_v1_template_builds__build_id__log_get'>>}
     */
    log(options?: import("./terms.d.ts").Options<"read_build_log_v1_template_builds__build_id__log_get">): Promise<Answer<"read_build_log_v1_template_builds__build_id__log_get">>;
    /**
     * End a build. The steps that are whole are kept for the next one.
     *
     * @param {import('./terms.d.ts').Options<'cancel_build_v1_template_builds__build_id__cancel_post'>} [options]
     * @returns {Promise<Answer<'cancel_build_v1_template_builds__build_id__cancel_post'>>}
     */
    cancel(options?: import("./terms.d.ts").Options<"cancel_build_v1_template_builds__build_id__cancel_post">): Promise<Answer<"cancel_build_v1_template_builds__build_id__cancel_post">>;
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
    create(sandbox_id: string, body: Body<"create_preview_v1_sandboxes__sandbox_id__previews_post">, options?: import("./terms.d.ts").Options<"create_preview_v1_sandboxes__sandbox_id__previews_post">): Promise<Answer<"create_preview_v1_sandboxes__sandbox_id__previews_post">>;
    /**
     * Previews that a sandbox serves, newest first, those that were taken back too.
     *
     * @param {string} sandbox_id
     * @param {import('./terms.d.ts').Options<'list_sandbox_previews_v1_sandboxes__sandbox_id__previews_get'>} [options]
     * @returns {Promise<Answer<'list_sandbox_previews_v1_sandboxes__sandbox_id__previews_get'>>}
     */
    listOfSandbox(sandbox_id: string, options?: import("./terms.d.ts").Options<"list_sandbox_previews_v1_sandboxes__sandbox_id__previews_get">): Promise<Answer<"list_sandbox_previews_v1_sandboxes__sandbox_id__previews_get">>;
    /**
     * All previews that the caller may see.
     *
     * @param {import('./terms.d.ts').Options<'list_previews_v1_previews_get'>} [options]
     * @returns {Promise<Answer<'list_previews_v1_previews_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_previews_v1_previews_get">): Promise<Answer<"list_previews_v1_previews_get">>;
    /**
     * One of them, with how it stands now, why, and the end of its log.
     *
     * @param {string} preview_id
     * @param {import('./terms.d.ts').Options<'get_preview_v1_previews__preview_id__get'>} [options]
     * @returns {Promise<Answer<'get_preview_v1_previews__preview_id__get'>>}
     */
    get(preview_id: string, options?: import("./terms.d.ts").Options<"get_preview_v1_previews__preview_id__get">): Promise<Answer<"get_preview_v1_previews__preview_id__get">>;
    /**
     * Share it otherwise. Whoever would not be let in now is sent away at once.
     *
     * @param {string} preview_id
     * @param {Body<'change_preview_v1_previews__preview_id__patch'>} [body]
     * @param {import('./terms.d.ts').Options<'change_preview_v1_previews__preview_id__patch'>} [options]
     * @returns {Promise<Answer<'change_preview_v1_previews__preview_id__patch'>>}
     */
    change(preview_id: string, body?: Body<"change_preview_v1_previews__preview_id__patch">, options?: import("./terms.d.ts").Options<"change_preview_v1_previews__preview_id__patch">): Promise<Answer<"change_preview_v1_previews__preview_id__patch">>;
    /**
     * Take it back. What serves goes on.
     *
     * @param {string} preview_id
     * @param {import('./terms.d.ts').Options<'revoke_preview_v1_previews__preview_id__delete'>} [options]
     * @returns {Promise<Answer<'revoke_preview_v1_previews__preview_id__delete'>>}
     */
    revoke(preview_id: string, options?: import("./terms.d.ts").Options<"revoke_preview_v1_previews__preview_id__delete">): Promise<Answer<"revoke_preview_v1_previews__preview_id__delete">>;
    /**
     * A link that opens it in one browser, once, within ten minutes.
     *
     * @param {string} preview_id
     * @param {import('./terms.d.ts').Options<'link_preview_v1_previews__preview_id__link_post'>} [options]
     * @returns {Promise<Answer<'link_preview_v1_previews__preview_id__link_post'>>}
     */
    link(preview_id: string, options?: import("./terms.d.ts").Options<"link_preview_v1_previews__preview_id__link_post">): Promise<Answer<"link_preview_v1_previews__preview_id__link_post">>;
    /**
     * End what serves; the address stays.
     *
     * @param {string} preview_id
     * @param {import('./terms.d.ts').Options<'stop_preview_v1_previews__preview_id__stop_post'>} [options]
     * @returns {Promise<Answer<'stop_preview_v1_previews__preview_id__stop_post'>>}
     */
    stop(preview_id: string, options?: import("./terms.d.ts").Options<"stop_preview_v1_previews__preview_id__stop_post">): Promise<Answer<"stop_preview_v1_previews__preview_id__stop_post">>;
    /**
     * Wake its sandbox, and start what serves again; answers when it does.
     *
     * @param {string} preview_id
     * @param {Body<'restart_preview_v1_previews__preview_id__restart_post'>} [body]
     * @param {import('./terms.d.ts').Options<'restart_preview_v1_previews__preview_id__restart_post'>} [options]
     * @returns {Promise<Answer<'restart_preview_v1_previews__preview_id__restart_post'>>}
     */
    restart(preview_id: string, body?: Body<"restart_preview_v1_previews__preview_id__restart_post">, options?: import("./terms.d.ts").Options<"restart_preview_v1_previews__preview_id__restart_post">): Promise<Answer<"restart_preview_v1_previews__preview_id__restart_post">>;
    /**
     * Make it again on another sandbox from what is on record, and have the address lead there.
     *
     * @param {string} preview_id
     * @param {Body<'rebuild_preview_v1_previews__preview_id__rebuild_post'>} [body]
     * @param {import('./terms.d.ts').Options<'rebuild_preview_v1_previews__preview_id__rebuild_post'>} [options]
     * @returns {Promise<Answer<'rebuild_preview_v1_previews__preview_id__rebuild_post'>>}
     */
    rebuild(preview_id: string, body?: Body<"rebuild_preview_v1_previews__preview_id__rebuild_post">, options?: import("./terms.d.ts").Options<"rebuild_preview_v1_previews__preview_id__rebuild_post">): Promise<Answer<"rebuild_preview_v1_previews__preview_id__rebuild_post">>;
    /**
     * The end of what it has printed.
     *
     * @param {string} preview_id
     * @param {import('./terms.d.ts').Options<'read_preview_log_v1_previews__preview_id__log_get'>} [options]
     * @returns {Promise<Answer<'read_preview_log_v1_previews__preview_id__log_get'>>}
     */
    log(preview_id: string, options?: import("./terms.d.ts").Options<"read_preview_log_v1_previews__preview_id__log_get">): Promise<Answer<"read_preview_log_v1_previews__preview_id__log_get">>;
}
export class Network extends Operations {
    /**
     * Contacts of all sandboxes; with `lookups` also names that were looked up and answered.
     *
     * @param {import('./terms.d.ts').Options<'search_network_v1_network_get'>} [options]
     * @returns {Promise<Answer<'search_network_v1_network_get'>>}
     */
    search(options?: import("./terms.d.ts").Options<"search_network_v1_network_get">): Promise<Answer<"search_network_v1_network_get">>;
    /**
     * Which sandboxes reached something, or tried to; whoever was there last first. `after` and `lookups` have no meaning
     * here.
     *
     * @param {import('./terms.d.ts').Options<'list_reached_by_v1_network_sandboxes_get'>} [options]
     * @returns {Promise<Answer<'list_reached_by_v1_network_sandboxes_get'>>}
     */
    sandboxes(options?: import("./terms.d.ts").Options<"list_reached_by_v1_network_sandboxes_get">): Promise<Answer<"list_reached_by_v1_network_sandboxes_get">>;
}
export class Lineage extends Operations {
    /**
     * What was reached, read, printed and written, in the order in which it came on record.
     * `endpoint` is a name or an address, also with a port; `label` is this one or a higher.
     *
     * @param {import('./terms.d.ts').Options<'list_lineage_v1_lineage_get'>} [options]
     * @returns {Promise<Answer<'list_lineage_v1_lineage_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_lineage_v1_lineage_get">): Promise<Answer<"list_lineage_v1_lineage_get">>;
    /**
     * One item.
     *
     * @param {string} item_id
     * @param {import('./terms.d.ts').Options<'get_lineage_v1_lineage__item_id__get'>} [options]
     * @returns {Promise<Answer<'get_lineage_v1_lineage__item_id__get'>>}
     */
    get(item_id: string, options?: import("./terms.d.ts").Options<"get_lineage_v1_lineage__item_id__get">): Promise<Answer<"get_lineage_v1_lineage__item_id__get">>;
    /**
     * All generations of what an item or a call may have come from, or gone to; with `known` only what is on record.
     * The id is that of an item, a call, a command or a receipt.
     *
     * @param {string} item_id
     * @param {import('./terms.d.ts').Options<'trace_lineage_v1_lineage__item_id__trace_get'>} [options]
     * @returns {Promise<Answer<'trace_lineage_v1_lineage__item_id__trace_get'>>}
     */
    trace(item_id: string, options?: import("./terms.d.ts").Options<"trace_lineage_v1_lineage__item_id__trace_get">): Promise<Answer<"trace_lineage_v1_lineage__item_id__trace_get">>;
}
export class Agents extends Operations {
    /**
     * Make an agent with its workspace, or return the one there is.
     *
     * @param {Body<'create_agent_v1_agents_post'>} body
     * @param {import('./terms.d.ts').Options<'create_agent_v1_agents_post'>} [options]
     * @returns {Promise<Answer<'create_agent_v1_agents_post'>>}
     */
    create(body: Body<"create_agent_v1_agents_post">, options?: import("./terms.d.ts").Options<"create_agent_v1_agents_post">): Promise<Answer<"create_agent_v1_agents_post">>;
    /**
     * List Agents
     *
     * @param {import('./terms.d.ts').Options<'list_agents_v1_agents_get'>} [options]
     * @returns {Promise<Answer<'list_agents_v1_agents_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_agents_v1_agents_get">): Promise<Answer<"list_agents_v1_agents_get">>;
    /**
     * Get Agent
     *
     * @param {string} agent_id
     * @param {import('./terms.d.ts').Options<'get_agent_v1_agents__agent_id__get'>} [options]
     * @returns {Promise<Answer<'get_agent_v1_agents__agent_id__get'>>}
     */
    get(agent_id: string, options?: import("./terms.d.ts").Options<"get_agent_v1_agents__agent_id__get">): Promise<Answer<"get_agent_v1_agents__agent_id__get">>;
    /**
     * Delete the workspace; refused while a sandbox runs on it. The ledger keeps all it has.
     *
     * @param {string} agent_id
     * @param {import('./terms.d.ts').Options<'delete_agent_v1_agents__agent_id__delete'>} [options]
     * @returns {Promise<Answer<'delete_agent_v1_agents__agent_id__delete'>>}
     */
    delete(agent_id: string, options?: import("./terms.d.ts").Options<"delete_agent_v1_agents__agent_id__delete">): Promise<Answer<"delete_agent_v1_agents__agent_id__delete">>;
    /**
     * Set the label of a workspace, also downward; owner and admin only, with a reason, recorded.
     *
     * @param {string} agent_id
     * @param {Body<'set_label_v1_agents__agent_id__label_put'>} body
     * @param {import('./terms.d.ts').Options<'set_label_v1_agents__agent_id__label_put'>} [options]
     * @returns {Promise<Answer<'set_label_v1_agents__agent_id__label_put'>>}
     */
    setLabel(agent_id: string, body: Body<"set_label_v1_agents__agent_id__label_put">, options?: import("./terms.d.ts").Options<"set_label_v1_agents__agent_id__label_put">): Promise<Answer<"set_label_v1_agents__agent_id__label_put">>;
    /**
     * Empty the `scratch` directory and touch nothing else.
     *
     * @param {string} agent_id
     * @param {import('./terms.d.ts').Options<'clean_scratch_v1_agents__agent_id__scratch_clean_post'>} [options]
     * @returns {Promise<Answer<'clean_scratch_v1_agents__agent_id__scratch_clean_post'>>}
     */
    cleanScratch(agent_id: string, options?: import("./terms.d.ts").Options<"clean_scratch_v1_agents__agent_id__scratch_clean_post">): Promise<Answer<"clean_scratch_v1_agents__agent_id__scratch_clean_post">>;
}
export class Sessions extends Operations {
    /**
     * One session with its taint.
     *
     * @param {string} session_id
     * @param {import('./terms.d.ts').Options<'get_session_v1_sessions__session_id__get'>} [options]
     * @returns {Promise<Answer<'get_session_v1_sessions__session_id__get'>>}
     */
    get(session_id: string, options?: import("./terms.d.ts").Options<"get_session_v1_sessions__session_id__get">): Promise<Answer<"get_session_v1_sessions__session_id__get">>;
    /**
     * Archive the session and open a new one at PUBLIC. The label of the workspace stays.
     *
     * @param {string} session_id
     * @param {import('./terms.d.ts').Options<'reset_session_v1_sessions__session_id__reset_post'>} [options]
     * @returns {Promise<Answer<'reset_session_v1_sessions__session_id__reset_post'>>}
     */
    reset(session_id: string, options?: import("./terms.d.ts").Options<"reset_session_v1_sessions__session_id__reset_post">): Promise<Answer<"reset_session_v1_sessions__session_id__reset_post">>;
}
export class Ledger extends Operations {
    /**
     * Entries after a sequence number, in order.
     *
     * @param {import('./terms.d.ts').Options<'list_entries_v1_ledger_entries_get'>} [options]
     * @returns {Promise<Answer<'list_entries_v1_ledger_entries_get'>>}
     */
    entries(options?: import("./terms.d.ts").Options<"list_entries_v1_ledger_entries_get">): Promise<Answer<"list_entries_v1_ledger_entries_get">>;
    /**
     * Recompute the whole chain and compare it with the checkpoints kept apart.
     *
     * @param {import('./terms.d.ts').Options<'verify_ledger_v1_ledger_verify_get'>} [options]
     * @returns {Promise<Answer<'verify_ledger_v1_ledger_verify_get'>>}
     */
    verify(options?: import("./terms.d.ts").Options<"verify_ledger_v1_ledger_verify_get">): Promise<Answer<"verify_ledger_v1_ledger_verify_get">>;
    /**
     * The whole ledger
     *
     * @param {import('./terms.d.ts').Options<'export_ledger'>} [options]
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    export(options?: import("./terms.d.ts").Options<"export_ledger">): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
}
export class Policy extends Operations {
    /**
     * Rules in force
     *
     * @param {import('./terms.d.ts').Options<'show_policy'>} [options]
     * @returns {Promise<Answer<'show_policy'>>}
     */
    show(options?: import("./terms.d.ts").Options<"show_policy">): Promise<Answer<"show_policy">>;
    /**
     * Load rules
     *
     * @param {string} body
     * @param {import('./terms.d.ts').Options<'load_policy'>} [options]
     * @returns {Promise<Answer<'load_policy'>>}
     */
    load(body: string, options?: import("./terms.d.ts").Options<"load_policy">): Promise<Answer<"load_policy">>;
    /**
     * Who changed the rules, when and why, and from which version to which; the first change first.
     *
     * @param {import('./terms.d.ts').Options<'list_policy_changes_v1_policy_log_get'>} [options]
     * @returns {Promise<Answer<'list_policy_changes_v1_policy_log_get'>>}
     */
    log(options?: import("./terms.d.ts").Options<"list_policy_changes_v1_policy_log_get">): Promise<Answer<"list_policy_changes_v1_policy_log_get">>;
    /**
     * Rules of a version
     *
     * @param {string} sha256
     * @param {import('./terms.d.ts').Options<'show_past_policy'>} [options]
     * @returns {Promise<Answer<'show_past_policy'>>}
     */
    version(sha256: string, options?: import("./terms.d.ts").Options<"show_past_policy">): Promise<Answer<"show_past_policy">>;
    /**
     * A stored decision beside the same one recomputed from its stored context and rules.
     *
     * @param {string} seq
     * @param {import('./terms.d.ts').Options<'replay_decision_v1_policy_replay__seq__get'>} [options]
     * @returns {Promise<Answer<'replay_decision_v1_policy_replay__seq__get'>>}
     */
    replay(seq: string, options?: import("./terms.d.ts").Options<"replay_decision_v1_policy_replay__seq__get">): Promise<Answer<"replay_decision_v1_policy_replay__seq__get">>;
    /**
     * The decision that this call would get now. Nothing is run.
     *
     * @param {Body<'check_call_v1_policy_check_post'>} body
     * @param {import('./terms.d.ts').Options<'check_call_v1_policy_check_post'>} [options]
     * @returns {Promise<Answer<'check_call_v1_policy_check_post'>>}
     */
    check(body: Body<"check_call_v1_policy_check_post">, options?: import("./terms.d.ts").Options<"check_call_v1_policy_check_post">): Promise<Answer<"check_call_v1_policy_check_post">>;
}
export class Tokens extends Operations {
    /**
     * Tokens without their secrets.
     *
     * @param {import('./terms.d.ts').Options<'list_tokens_v1_tokens_get'>} [options]
     * @returns {Promise<Answer<'list_tokens_v1_tokens_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_tokens_v1_tokens_get">): Promise<Answer<"list_tokens_v1_tokens_get">>;
    /**
     * Make a token. The secret is in this answer and nowhere else.
     *
     * @param {Body<'create_token_v1_tokens_post'>} body
     * @param {import('./terms.d.ts').Options<'create_token_v1_tokens_post'>} [options]
     * @returns {Promise<Answer<'create_token_v1_tokens_post'>>}
     */
    create(body: Body<"create_token_v1_tokens_post">, options?: import("./terms.d.ts").Options<"create_token_v1_tokens_post">): Promise<Answer<"create_token_v1_tokens_post">>;
    /**
     * Make a token worthless at once.
     *
     * @param {string} token_id
     * @param {import('./terms.d.ts').Options<'revoke_token_v1_tokens__token_id__delete'>} [options]
     * @returns {Promise<Answer<'revoke_token_v1_tokens__token_id__delete'>>}
     */
    revoke(token_id: string, options?: import("./terms.d.ts").Options<"revoke_token_v1_tokens__token_id__delete">): Promise<Answer<"revoke_token_v1_tokens__token_id__delete">>;
}
export class Credentials extends Operations {
    /**
     * All credentials without their secrets, those that were revoked too.
     *
     * @param {import('./terms.d.ts').Options<'list_credentials_v1_credentials_get'>} [options]
     * @returns {Promise<Answer<'list_credentials_v1_credentials_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_credentials_v1_credentials_get">): Promise<Answer<"list_credentials_v1_credentials_get">>;
    /**
     * Keep a secret for sandboxes to use without seeing it. Nothing gives it out again.
     *
     * @param {Body<'add_credential_v1_credentials_post'>} body
     * @param {import('./terms.d.ts').Options<'add_credential_v1_credentials_post'>} [options]
     * @returns {Promise<Answer<'add_credential_v1_credentials_post'>>}
     */
    add(body: Body<"add_credential_v1_credentials_post">, options?: import("./terms.d.ts").Options<"add_credential_v1_credentials_post">): Promise<Answer<"add_credential_v1_credentials_post">>;
    /**
     * One credential, without its secret.
     *
     * @param {string} name
     * @param {import('./terms.d.ts').Options<'get_credential_v1_credentials__name__get'>} [options]
     * @returns {Promise<Answer<'get_credential_v1_credentials__name__get'>>}
     */
    get(name: string, options?: import("./terms.d.ts").Options<"get_credential_v1_credentials__name__get">): Promise<Answer<"get_credential_v1_credentials__name__get">>;
    /**
     * Take it back at once: the secret is removed, and what was under way with it is broken off.
     *
     * @param {string} name
     * @param {import('./terms.d.ts').Options<'revoke_credential_v1_credentials__name__delete'>} [options]
     * @returns {Promise<Answer<'revoke_credential_v1_credentials__name__delete'>>}
     */
    revoke(name: string, options?: import("./terms.d.ts").Options<"revoke_credential_v1_credentials__name__delete">): Promise<Answer<"revoke_credential_v1_credentials__name__delete">>;
    /**
     * Put another secret in place of the one before, from the next request on; handles stay.
     *
     * @param {string} name
     * @param {Body<'rotate_credential_v1_credentials__name__rotate_post'>} body
     * @param {import('./terms.d.ts').Options<'rotate_credential_v1_credentials__name__rotate_post'>} [options]
     * @returns {Promise<Answer<'rotate_credential_v1_credentials__name__rotate_post'>>}
     */
    rotate(name: string, body: Body<"rotate_credential_v1_credentials__name__rotate_post">, options?: import("./terms.d.ts").Options<"rotate_credential_v1_credentials__name__rotate_post">): Promise<Answer<"rotate_credential_v1_credentials__name__rotate_post">>;
    /**
     * What it was used for, and what for in vain, in order.
     *
     * @param {string} name
     * @param {import('./terms.d.ts').Options<'list_credential_uses_v1_credentials__name__uses_get'>} [options]
     * @returns {Promise<Answer<'list_credential_uses_v1_credentials__name__uses_get'>>}
     */
    uses(name: string, options?: import("./terms.d.ts").Options<"list_credential_uses_v1_credentials__name__uses_get">): Promise<Answer<"list_credential_uses_v1_credentials__name__uses_get">>;
}
export class Git extends Operations {
    /**
     * What is not as the last commit has it, and what is under way. Nothing of Git is run.
     *
     * @param {import('./terms.d.ts').Options<'git_status_v1_sandboxes__sandbox_id__git_status_get', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_status_v1_sandboxes__sandbox_id__git_status_get'>>}
     */
    status(options?: import("./terms.d.ts").Options<"git_status_v1_sandboxes__sandbox_id__git_status_get", "session_id">): Promise<Answer<"git_status_v1_sandboxes__sandbox_id__git_status_get">>;
    /**
     * Commits, newest first. Nothing of Git is run.
     *
     * @param {import('./terms.d.ts').Options<'git_log_v1_sandboxes__sandbox_id__git_log_get', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_log_v1_sandboxes__sandbox_id__git_log_get'>>}
     */
    log(options?: import("./terms.d.ts").Options<"git_log_v1_sandboxes__sandbox_id__git_log_get", "session_id">): Promise<Answer<"git_log_v1_sandboxes__sandbox_id__git_log_get">>;
    /**
     * One commit, with what it changed against its first parent. Nothing of Git is run.
     *
     * @param {import('./terms.d.ts').Options<'git_show_v1_sandboxes__sandbox_id__git_show_get', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_show_v1_sandboxes__sandbox_id__git_show_get'>>}
     */
    show(options?: import("./terms.d.ts").Options<"git_show_v1_sandboxes__sandbox_id__git_show_get", "session_id">): Promise<Answer<"git_show_v1_sandboxes__sandbox_id__git_show_get">>;
    /**
     * What differs between two of: a revision, what is staged, the working tree. Nothing of Git is run.
     *
     * @param {import('./terms.d.ts').Options<'git_diff_v1_sandboxes__sandbox_id__git_diff_get', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_diff_v1_sandboxes__sandbox_id__git_diff_get'>>}
     */
    diff(options?: import("./terms.d.ts").Options<"git_diff_v1_sandboxes__sandbox_id__git_diff_get", "session_id">): Promise<Answer<"git_diff_v1_sandboxes__sandbox_id__git_diff_get">>;
    /**
     * Branches, tags and remotes. Nothing of Git is run.
     *
     * @param {import('./terms.d.ts').Options<'git_refs_v1_sandboxes__sandbox_id__git_refs_get', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_refs_v1_sandboxes__sandbox_id__git_refs_get'>>}
     */
    refs(options?: import("./terms.d.ts").Options<"git_refs_v1_sandboxes__sandbox_id__git_refs_get", "session_id">): Promise<Answer<"git_refs_v1_sandboxes__sandbox_id__git_refs_get">>;
    /**
     * The repositories of the workspace. Nothing of Git is run.
     *
     * @param {import('./terms.d.ts').Options<'git_repositories_v1_sandboxes__sandbox_id__git_repositories_get', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_repositories_v1_sandboxes__sandbox_id__git_repositories_get'>>}
     */
    repositories(options?: import("./terms.d.ts").Options<"git_repositories_v1_sandboxes__sandbox_id__git_repositories_get", "session_id">): Promise<Answer<"git_repositories_v1_sandboxes__sandbox_id__git_repositories_get">>;
    /**
     * Begin a repository.
     *
     * @param {Body<'git_init_v1_sandboxes__sandbox_id__git_init_post'>} [body]
     * @param {import('./terms.d.ts').Options<'git_init_v1_sandboxes__sandbox_id__git_init_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_init_v1_sandboxes__sandbox_id__git_init_post'>>}
     */
    init(body?: Body<"git_init_v1_sandboxes__sandbox_id__git_init_post">, options?: import("./terms.d.ts").Options<"git_init_v1_sandboxes__sandbox_id__git_init_post", "session_id">): Promise<Answer<"git_init_v1_sandboxes__sandbox_id__git_init_post">>;
    /**
     * Fetch a repository from elsewhere, as far as the network of the sandbox leads there.
     *
     * @param {Body<'git_clone_v1_sandboxes__sandbox_id__git_clone_post'>} body
     * @param {import('./terms.d.ts').Options<'git_clone_v1_sandboxes__sandbox_id__git_clone_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_clone_v1_sandboxes__sandbox_id__git_clone_post'>>}
     */
    clone(body: Body<"git_clone_v1_sandboxes__sandbox_id__git_clone_post">, options?: import("./terms.d.ts").Options<"git_clone_v1_sandboxes__sandbox_id__git_clone_post", "session_id">): Promise<Answer<"git_clone_v1_sandboxes__sandbox_id__git_clone_post">>;
    /**
     * Record what is staged, after adding what is named. Its author is the agent.
     *
     * @param {Body<'git_commit_v1_sandboxes__sandbox_id__git_commit_post'>} body
     * @param {import('./terms.d.ts').Options<'git_commit_v1_sandboxes__sandbox_id__git_commit_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_commit_v1_sandboxes__sandbox_id__git_commit_post'>>}
     */
    commit(body: Body<"git_commit_v1_sandboxes__sandbox_id__git_commit_post">, options?: import("./terms.d.ts").Options<"git_commit_v1_sandboxes__sandbox_id__git_commit_post", "session_id">): Promise<Answer<"git_commit_v1_sandboxes__sandbox_id__git_commit_post">>;
    /**
     * Make a branch, or delete one.
     *
     * @param {Body<'git_branch_v1_sandboxes__sandbox_id__git_branch_post'>} body
     * @param {import('./terms.d.ts').Options<'git_branch_v1_sandboxes__sandbox_id__git_branch_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_branch_v1_sandboxes__sandbox_id__git_branch_post'>>}
     */
    branch(body: Body<"git_branch_v1_sandboxes__sandbox_id__git_branch_post">, options?: import("./terms.d.ts").Options<"git_branch_v1_sandboxes__sandbox_id__git_branch_post", "session_id">): Promise<Answer<"git_branch_v1_sandboxes__sandbox_id__git_branch_post">>;
    /**
     * Check out another branch, or a commit.
     *
     * @param {Body<'git_switch_v1_sandboxes__sandbox_id__git_switch_post'>} body
     * @param {import('./terms.d.ts').Options<'git_switch_v1_sandboxes__sandbox_id__git_switch_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_switch_v1_sandboxes__sandbox_id__git_switch_post'>>}
     */
    switch(body: Body<"git_switch_v1_sandboxes__sandbox_id__git_switch_post">, options?: import("./terms.d.ts").Options<"git_switch_v1_sandboxes__sandbox_id__git_switch_post", "session_id">): Promise<Answer<"git_switch_v1_sandboxes__sandbox_id__git_switch_post">>;
    /**
     * Join another history to the branch that is checked out, or give that up.
     *
     * @param {Body<'git_merge_v1_sandboxes__sandbox_id__git_merge_post'>} [body]
     * @param {import('./terms.d.ts').Options<'git_merge_v1_sandboxes__sandbox_id__git_merge_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_merge_v1_sandboxes__sandbox_id__git_merge_post'>>}
     */
    merge(body?: Body<"git_merge_v1_sandboxes__sandbox_id__git_merge_post">, options?: import("./terms.d.ts").Options<"git_merge_v1_sandboxes__sandbox_id__git_merge_post", "session_id">): Promise<Answer<"git_merge_v1_sandboxes__sandbox_id__git_merge_post">>;
    /**
     * Have files be again as a commit, or what is staged, has them.
     *
     * @param {Body<'git_restore_v1_sandboxes__sandbox_id__git_restore_post'>} body
     * @param {import('./terms.d.ts').Options<'git_restore_v1_sandboxes__sandbox_id__git_restore_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_restore_v1_sandboxes__sandbox_id__git_restore_post'>>}
     */
    restore(body: Body<"git_restore_v1_sandboxes__sandbox_id__git_restore_post">, options?: import("./terms.d.ts").Options<"git_restore_v1_sandboxes__sandbox_id__git_restore_post", "session_id">): Promise<Answer<"git_restore_v1_sandboxes__sandbox_id__git_restore_post">>;
    /**
     * Give a commit a name that stays, or take one away.
     *
     * @param {Body<'git_tag_v1_sandboxes__sandbox_id__git_tag_post'>} body
     * @param {import('./terms.d.ts').Options<'git_tag_v1_sandboxes__sandbox_id__git_tag_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_tag_v1_sandboxes__sandbox_id__git_tag_post'>>}
     */
    tag(body: Body<"git_tag_v1_sandboxes__sandbox_id__git_tag_post">, options?: import("./terms.d.ts").Options<"git_tag_v1_sandboxes__sandbox_id__git_tag_post", "session_id">): Promise<Answer<"git_tag_v1_sandboxes__sandbox_id__git_tag_post">>;
    /**
     * Get what a remote has. Nothing that is checked out changes.
     *
     * @param {Body<'git_fetch_v1_sandboxes__sandbox_id__git_fetch_post'>} [body]
     * @param {import('./terms.d.ts').Options<'git_fetch_v1_sandboxes__sandbox_id__git_fetch_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_fetch_v1_sandboxes__sandbox_id__git_fetch_post'>>}
     */
    fetch(body?: Body<"git_fetch_v1_sandboxes__sandbox_id__git_fetch_post">, options?: import("./terms.d.ts").Options<"git_fetch_v1_sandboxes__sandbox_id__git_fetch_post", "session_id">): Promise<Answer<"git_fetch_v1_sandboxes__sandbox_id__git_fetch_post">>;
    /**
     * Send a branch to a remote.
     *
     * @param {Body<'git_push_v1_sandboxes__sandbox_id__git_push_post'>} [body]
     * @param {import('./terms.d.ts').Options<'git_push_v1_sandboxes__sandbox_id__git_push_post', 'session_id'>} [options]
     * @returns {Promise<Answer<'git_push_v1_sandboxes__sandbox_id__git_push_post'>>}
     */
    push(body?: Body<"git_push_v1_sandboxes__sandbox_id__git_push_post">, options?: import("./terms.d.ts").Options<"git_push_v1_sandboxes__sandbox_id__git_push_post", "session_id">): Promise<Answer<"git_push_v1_sandboxes__sandbox_id__git_push_post">>;
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
    start(sandbox_id: string, body: Body<"start_build_v1_sandboxes__sandbox_id__builds_post">, options?: import("./terms.d.ts").Options<"start_build_v1_sandboxes__sandbox_id__builds_post", "idempotency_key">): Promise<Answer<"start_build_v1_sandboxes__sandbox_id__builds_post">>;
    /**
     * Builds that the caller may see, newest first, those of ended sandboxes too.
     *
     * @param {import('./terms.d.ts').Options<'list_builds_v1_builds_get'>} [options]
     * @returns {Promise<Answer<'list_builds_v1_builds_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_builds_v1_builds_get">): Promise<Answer<"list_builds_v1_builds_get">>;
    /**
     * How it and each of its phases stands; with `wait_s`, as soon as it is over, or after that time as it is then.
     *
     * @param {string} build_id
     * @param {import('./terms.d.ts').Options<'get_build_v1_builds__build_id__get'>} [options]
     * @returns {Promise<Answer<'get_build_v1_builds__build_id__get'>>}
     */
    get(build_id: string, options?: import("./terms.d.ts").Options<"get_build_v1_builds__build_id__get">): Promise<Answer<"get_build_v1_builds__build_id__get">>;
    /**
     * Start no further phase, and end the one that runs.
     *
     * @param {string} build_id
     * @param {import('./terms.d.ts').Options<'cancel_build_v1_builds__build_id__cancel_post'>} [options]
     * @returns {Promise<Answer<'cancel_build_v1_builds__build_id__cancel_post'>>}
     */
    cancel(build_id: string, options?: import("./terms.d.ts").Options<"cancel_build_v1_builds__build_id__cancel_post">): Promise<Answer<"cancel_build_v1_builds__build_id__cancel_post">>;
    /**
     * Make it again in a new sandbox, from what went into it and nothing else; answers when that has begun.
     *
     * @param {string} build_id
     * @param {Body<'rebuild_v1_builds__build_id__rebuild_post'>} [body]
     * @param {import('./terms.d.ts').Options<'rebuild_v1_builds__build_id__rebuild_post'>} [options]
     * @returns {Promise<Answer<'rebuild_v1_builds__build_id__rebuild_post'>>}
     */
    rebuild(build_id: string, body?: Body<"rebuild_v1_builds__build_id__rebuild_post">, options?: import("./terms.d.ts").Options<"rebuild_v1_builds__build_id__rebuild_post">): Promise<Answer<"rebuild_v1_builds__build_id__rebuild_post">>;
    /**
     * In what it differs from another one: commands, template, input, dependencies, output.
     *
     * @param {string} build_id
     * @param {string} other_id
     * @param {import('./terms.d.ts').Options<'compare_builds_v1_builds__build_id__compare__other_id__get'>} [options]
     * @returns {Promise<Answer<'compare_builds_v1_builds__build_id__compare__other_id__get'>>}
     */
    compare(build_id: string, other_id: string, options?: import("./terms.d.ts").Options<"compare_builds_v1_builds__build_id__compare__other_id__get">): Promise<Answer<"compare_builds_v1_builds__build_id__compare__other_id__get">>;
    /**
     * Log of a build
     *
     * @param {string} build_id
     * @param {import('./terms.d.ts').Options<'read_build_log'>} [options]
     * @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>}
     */
    log(build_id: string, options?: import("./terms.d.ts").Options<"read_build_log">): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
}
export class Webhooks extends Operations {
    /**
     * All web hooks, with how it goes there, without their secrets.
     *
     * @param {import('./terms.d.ts').Options<'list_webhooks_v1_webhooks_get'>} [options]
     * @returns {Promise<Answer<'list_webhooks_v1_webhooks_get'>>}
     */
    list(options?: import("./terms.d.ts").Options<"list_webhooks_v1_webhooks_get">): Promise<Answer<"list_webhooks_v1_webhooks_get">>;
    /**
     * Announce events to an address from now on, signed with the secret of the answer, which is shown this once.
     *
     * @param {Body<'add_webhook_v1_webhooks_post'>} body
     * @param {import('./terms.d.ts').Options<'add_webhook_v1_webhooks_post'>} [options]
     * @returns {Promise<Answer<'add_webhook_v1_webhooks_post'>>}
     */
    add(body: Body<"add_webhook_v1_webhooks_post">, options?: import("./terms.d.ts").Options<"add_webhook_v1_webhooks_post">): Promise<Answer<"add_webhook_v1_webhooks_post">>;
    /**
     * One web hook, with how it goes there.
     *
     * @param {string} webhook_id
     * @param {import('./terms.d.ts').Options<'get_webhook_v1_webhooks__webhook_id__get'>} [options]
     * @returns {Promise<Answer<'get_webhook_v1_webhooks__webhook_id__get'>>}
     */
    get(webhook_id: string, options?: import("./terms.d.ts").Options<"get_webhook_v1_webhooks__webhook_id__get">): Promise<Answer<"get_webhook_v1_webhooks__webhook_id__get">>;
    /**
     * Announce nothing more there.
     *
     * @param {string} webhook_id
     * @param {import('./terms.d.ts').Options<'remove_webhook_v1_webhooks__webhook_id__delete'>} [options]
     * @returns {Promise<Answer<'remove_webhook_v1_webhooks__webhook_id__delete'>>}
     */
    remove(webhook_id: string, options?: import("./terms.d.ts").Options<"remove_webhook_v1_webhooks__webhook_id__delete">): Promise<Answer<"remove_webhook_v1_webhooks__webhook_id__delete">>;
    /**
     * Try one that fails, or is dead, again at once. It goes on where it was.
     *
     * @param {string} webhook_id
     * @param {import('./terms.d.ts').Options<'resume_webhook_v1_webhooks__webhook_id__resume_post'>} [options]
     * @returns {Promise<Answer<'resume_webhook_v1_webhooks__webhook_id__resume_post'>>}
     */
    resume(webhook_id: string, options?: import("./terms.d.ts").Options<"resume_webhook_v1_webhooks__webhook_id__resume_post">): Promise<Answer<"resume_webhook_v1_webhooks__webhook_id__resume_post">>;
}
export type Transport = import("./transport.js").Transport;
export type Sandbox = import("./sandbox.js").Sandbox;
export type Content = import("./terms.d.ts").Content;
export type Answer<O extends import("./terms.d.ts").OperationId> = import("./terms.d.ts").Answer<O>;
export type Body<O extends import("./terms.d.ts").OperationId> = import("./terms.d.ts").Body<O>;
export type Event<O extends import("./terms.d.ts").OperationId> = import("./terms.d.ts").Event<O>;
/** @typedef {import('./transport.js').Transport} Transport */
/** @typedef {import('./sandbox.js').Sandbox} Sandbox */
/** @typedef {import('./terms.d.ts').Content} Content */
/** @template {import('./terms.d.ts').OperationId} O @typedef {import('./terms.d.ts').Answer<O>} Answer */
/** @template {import('./terms.d.ts').OperationId} O @typedef {import('./terms.d.ts').Body<O>} Body */
/** @template {import('./terms.d.ts').OperationId} O @typedef {import('./terms.d.ts').Event<O>} Event */
declare class Operations {
    /**
     * @param {Transport} transport
     * @param {Record<string, string>} [names] what of the paths of its operations is known
     */
    constructor(transport: Transport, names?: Record<string, string>);
    _transport: import("./transport.js").Transport;
    _names: Record<string, string>;
}
export {};
